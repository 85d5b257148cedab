// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";

import {Counts} from "./Counts.sol";
import {Deployed} from "./Deployed.sol";
import {NodeRegistry} from "./NodeRegistry.sol";
import {Activity, Asked, Member, Progress, Return, Run, RunConfig, Runs, Stage, Standing, Terms} from "./Runs.sol";
import {Outcome, Seal, Seals} from "./Seals.sol";
import {Enlisted, Sites} from "./Sites.sol";
import {Verdicts} from "./Verdicts.sol";

/// @title Who holds which seat of a run, and which contributions each round counted
/// @notice Nobody owns the ledger, nothing in it can be upgraded, and a sealed round can never be changed.
contract TrainingLedger is EIP712, Deployed {
    using Counts for uint256;
    using Runs for Run;
    using Runs for Stage;
    using Runs for Terms;
    using Runs for Activity;
    using Runs for Progress;
    using Seals for Outcome;
    using Seals for Seal;
    using Seals for bytes;
    using Verdicts for uint256;

    /// @notice For joinRun: take any stage.
    uint16 public constant ANY_STAGE = type(uint16).max;

    /// @notice Who may join: accounts that have a node there.
    NodeRegistry public immutable registry;

    mapping(bytes32 run => Run) private _runs;

    /// @notice `genesis` has the weights hash of V[s, 0] for each stage s.
    event RunCreated(bytes32 indexed run, address indexed creator, RunConfig config, string name, bytes32[] genesis);
    /// @notice Enough replicas are complete: round 0 is open from this time on, in Unix seconds.
    event RunOpened(bytes32 indexed run, uint64 openedAt);
    event Joined(bytes32 indexed run, address indexed account, uint16 replica, uint16 stage);
    /// @notice Until then the others of its site may seat the account, which asks for `stage` (ANY_STAGE: whichever).
    event SiteEnlisted(bytes32 indexed run, address indexed account, address indexed site, uint16 stage, uint64 until);
    /// @notice All seats of the replica are the site's now, each stage's of one of these accounts. A Joined follows for
    /// each that did not hold its seat before.
    event SiteSeated(bytes32 indexed run, address indexed site, uint16 replica, address[] accounts);
    /// @notice The holder gave its seat back; its stage's next seal may still count it.
    event Left(bytes32 indexed run, address indexed account, uint16 replica, uint16 stage);
    /// @notice The holder took a lower free seat of its stage.
    event Moved(bytes32 indexed run, address indexed account, uint16 fromReplica, uint16 toReplica, uint16 stage);
    /// @notice The holders of two seats of a stage changed places.
    event Dealt(bytes32 indexed run, uint16 stage, uint16 replica, uint16 with);
    /// @notice `forfeit`: only being counted keeps the seat, an answer wins time.
    event Accused(bytes32 indexed run, address indexed account, address by, bool forfeit);
    event Answered(bytes32 indexed run, address indexed account);
    /// @notice `returnUntil` is the time until which nobody else can take the seat; 0: anyone can.
    event Evicted(bytes32 indexed run, address indexed account, uint16 replica, uint16 stage, uint64 returnUntil);
    /// @notice The account's contribution to (stage, round) was found false or withheld: it lost the seat that it held, if
    /// any, and never gets another.
    event Convicted(
        bytes32 indexed run, address indexed account, uint16 stage, uint32 round, bytes32 statement, bytes entries
    );
    /// @notice `digest` is the stage's new head, and what the signatures are over.
    event Sealed(
        bytes32 indexed run,
        uint16 indexed stage,
        uint32 indexed round,
        bytes32 digest,
        Outcome outcome,
        bytes records,
        bytes signatures
    );
    /// @notice The run's creator or a holder says where a version can be fetched (publishCheckpoint); nobody checked it.
    event CheckpointPublished(
        bytes32 indexed run, uint32 indexed round, address indexed account, bytes32 folder, string uri
    );

    error UnknownRun(bytes32 run);
    error RunExists(bytes32 run);
    error NotRegistered(address account);
    error UnknownStage(uint16 stage);
    error AlreadyHolding(address account, uint16 replica, uint16 stage);
    /// @notice The account may still be counted in its former stage; it can change stage after that stage's next seal.
    error SealPending(uint16 stage, uint32 round);
    error NotEnlisted(address account);
    error WrongSeats(uint16 replica, uint256 accounts);
    error ReplicaComplete(uint16 replica);
    error ReplicaIncomplete(uint16 replica);
    error AccusationPending(address account);
    error TooEarlyToAccuse(address account);
    error NotAccused(address account);
    error TooEarlyToEvict(uint256 fromTime);
    error CountedSinceAccused(address account);
    error TooEarlyToDeal(uint16 replica, uint32 fromRound);
    /// @notice Every stage drew the replica itself; the next seal makes another draw.
    error NothingDealt(uint16 replica);
    error UnknownVersion(uint32 round);
    error UriTooLong(uint256 length, uint256 limit);
    error NeverHeld(address account, uint16 stage);
    error IsConvicted(address account);

    error WrongRound(uint32 given, uint32 open);
    error AlreadySealed(uint16 stage, uint32 round);
    error TooEarlyToSeal(uint256 fromTime);
    error RecordsLength(uint256 length);
    error RecordsNotAscending(uint256 replica);
    /// @notice No signature, of the seal or of the record, is of a member that can have made the record.
    error RecordUnsigned(uint256 replica);
    error WrongInnerSteps(uint256 given, uint256 most);
    error WrongPlan();
    error EmptySealChangesState();
    error SignaturesLength(uint256 length);
    error QuorumMissing(uint256 votes, uint256 needed);

    constructor(NodeRegistry registry_) EIP712("dlx-node TrainingLedger", "2") {
        registry = registry_;
    }

    // ---------------------------------------------------------------------------------------------------- runs

    /// @notice Creates a run.
    /// @param name what people call it, as in the manifest; it is only in the event, and other runs may have the same
    /// @param genesis the weights hash of V[s, 0] for each stage s
    function createRun(RunConfig calldata config, string calldata name, bytes32[] calldata genesis)
        external
        returns (bytes32 run)
    {
        Runs.check(config);
        Runs.checkName(bytes(name));
        if (genesis.length != config.stages) revert Runs.InvalidConfig("genesis");

        run = keccak256(abi.encode(block.chainid, address(this), msg.sender, config.manifest));
        Run storage r = _runs[run];
        if (r.creator != address(0)) revert RunExists(run);
        r.creator = msg.sender;
        r.config = config;
        r.terms = Terms(
            config.rounds,
            config.stages,
            config.minReplicas,
            config.maxReplicas,
            config.quorumNumerator,
            config.quorumDenominator,
            config.minRoundTime,
            config.roundTimeout,
            config.evictionTime,
            config.maxInnerSteps
        );
        for (uint256 stage = 0; stage < genesis.length; ++stage) {
            if (genesis[stage] == 0) revert Runs.InvalidConfig("genesis");
            r.stages[stage].head = genesis[stage];
        }
        emit RunCreated(run, msg.sender, config, name, genesis);
    }

    /// @notice Says where version V[., round] of all stages can be fetched as a checkpoint.
    /// @param folder the sha256 of the checkpoint's list of files; whoever pulls the version makes the same list
    function publishCheckpoint(bytes32 run, uint32 round, bytes32 folder, string calldata uri) external {
        Run storage r = _run(run);
        if (msg.sender != r.creator && !r.members[msg.sender].holds) revert Runs.NotHolding(msg.sender);
        if (round > r.progress.openRound) revert UnknownVersion(round);
        if (bytes(uri).length > Runs.MAX_URI_BYTES) revert UriTooLong(bytes(uri).length, Runs.MAX_URI_BYTES);
        emit CheckpointPublished(run, round, msg.sender, folder, uri);
    }

    // --------------------------------------------------------------------------------------------------- seats

    /// @notice Gives the sender a seat: in the lowest replica where that of `stage` is free, or, for ANY_STAGE, the
    /// lowest free seat of any stage. An evicted member gets its own one back as long as it waits for it.
    function joinRun(bytes32 run, uint16 stage) external {
        Run storage r = _run(run);
        Member storage member = _newcomer(r, msg.sender);
        if (stage != ANY_STAGE && stage >= r.terms.stages) revert UnknownStage(stage);

        uint256 replica;
        if ((stage == ANY_STAGE || stage == member.stage) && r.mayReturn(member, msg.sender)) {
            (replica, stage) = (member.replica, member.stage);
        } else {
            (replica, stage) = _freeSeat(r, stage);
        }
        _seat(run, r, member, msg.sender, replica, stage);
        _openFirst(run, r);
    }

    /// @notice Lets the other machines of the sender's site seat it, until then and once, in any stage; `stage` says which
    /// one it asks for. It takes no seat from anybody, and keeps none free.
    /// @param signature the site key's EIP-712 signature over SiteMember(run, sender): its maker is the site
    function enlist(bytes32 run, uint16 stage, uint40 until, bytes calldata signature) external {
        Run storage r = _run(run);
        if (!registry.isRegistered(msg.sender)) revert NotRegistered(msg.sender);
        if (signature.length != Sites.SIGNATURE_BYTES) revert SignaturesLength(signature.length);
        address site = signature.signer(0, _hashTypedDataV4(Sites.hash(run, msg.sender)));
        if (site == address(0)) revert NotEnlisted(msg.sender);
        r.enlisted[msg.sender] = Enlisted(site, until);
        emit SiteEnlisted(run, msg.sender, site, stage, until);
    }

    /// @notice Seats machines of the sender's site so that all seats of the replica are theirs: in one transaction, so
    /// nobody can come between, and nothing is kept for who never comes.
    /// @param accounts one for each stage, in their order: enlisted, or already in this seat
    function joinSite(bytes32 run, uint16 replica, address[] calldata accounts) external {
        Run storage r = _run(run);
        address site = r.enlisted[msg.sender].site;
        if (site == address(0)) revert NotEnlisted(msg.sender);
        if (replica >= r.terms.maxReplicas || accounts.length != r.terms.stages) {
            revert WrongSeats(replica, accounts.length);
        }
        emit SiteSeated(run, site, replica, accounts);
        for (uint16 stage = 0; stage < accounts.length; ++stage) {
            address account = accounts[stage];
            Enlisted memory enlisted = r.enlisted[account];
            if (enlisted.site != site) revert NotEnlisted(account);
            if (r.stages[stage].holders[replica] == account) continue;
            if (enlisted.until < block.timestamp) revert NotEnlisted(account);
            if (!r.isFree(replica, stage, account)) revert Runs.NoFreeSeat(stage);
            _seat(run, r, _newcomer(r, account), account, replica, stage);
        }
        _openFirst(run, r);
    }

    /// @notice Moves a holder of an incomplete replica to the lowest replica where its stage is free.
    function moveDown(bytes32 run) external {
        Run storage r = _run(run);
        Member storage member = r.holder(msg.sender);
        uint16 from = member.replica;
        if ((r.progress.complete >> from) & 1 == 1) revert ReplicaComplete(from);
        uint256 to = r.freeSeat(member.stage, msg.sender);
        if (to >= from) revert Runs.NoLowerSeat(from, member.stage);
        r.move(member, msg.sender, to);
        emit Moved(run, msg.sender, from, uint16(to), member.stage);
        _openFirst(run, r);
    }

    /// @notice Gives the sender's seat back. It takes effect at its stage's next seal, which may still count it.
    function leaveRun(bytes32 run) external {
        Run storage r = _run(run);
        Member storage member = r.holder(msg.sender);
        // slither-disable-next-line unused-return: whoever leaves by itself has no term to come back
        r.release(member);
        emit Left(run, msg.sender, member.replica, member.stage);
    }

    /// @notice Asks a holder whether it is still there. A holder may ask another once the round has timed out, or once
    /// it was not counted for three rounds. Anyone may ask whose seat is forfeit (Runs.isForfeit).
    function accuse(bytes32 run, address account) external {
        Run storage r = _run(run);
        r.requireOpen();
        Member storage member = r.holder(account);
        if (member.asked != Asked.No && !r.countedSinceAsked(member)) {
            if (member.asked != Asked.WorkAnswered || r.isForfeit(member)) revert AccusationPending(account);
        }
        if (member.askedAt != 0 && block.timestamp <= uint256(member.askedAt) + r.terms.roundTimeout) {
            revert TooEarlyToAccuse(account);
        }
        bool forfeit = r.isForfeit(member);
        if (!forfeit) {
            // slither-disable-next-line unused-return: only that it holds a seat matters
            r.holder(msg.sender);
            if (!_isTimedOut(r) && !_isUncounted(r, member)) revert TooEarlyToAccuse(account);
        }
        member.asked = forfeit ? Asked.Work : Asked.Presence;
        member.askedAt = uint40(block.timestamp);
        member.askedSeal = r.stages[member.stage].activity.nonEmpty;
        emit Accused(run, account, msg.sender, forfeit);
    }

    /// @notice The accused sender is still there. Where its seat is forfeit, that wins it time to be counted; once it
    /// was, it may answer again and is not accused any more.
    function answer(bytes32 run) external {
        Run storage r = _run(run);
        Member storage member = r.holder(msg.sender);
        if (member.asked == Asked.Presence || (member.asked != Asked.No && r.countedSinceAsked(member))) {
            member.asked = Asked.No;
        } else if (member.asked == Asked.Work) {
            member.asked = Asked.WorkAnswered;
        } else {
            revert NotAccused(msg.sender);
        }
        emit Answered(run, msg.sender);
    }

    /// @notice Frees the seat of an accused holder that did not answer in time, or whose seat is lost (Runs.isLost). One
    /// that was counted lately may take it again, alone, for as long once more.
    function evict(bytes32 run, address account) external {
        Run storage r = _run(run);
        Member storage member = r.holder(account);
        if (member.asked == Asked.No) revert NotAccused(account);
        if (r.countedSinceAsked(member)) revert CountedSinceAccused(account);
        if (member.asked == Asked.WorkAnswered && !r.isLost(member)) revert NotAccused(account);
        uint256 fromTime = uint256(member.askedAt) + r.terms.evictionTime;
        if (block.timestamp < fromTime) revert TooEarlyToEvict(fromTime);

        uint64 until = 0;
        if (r.release(member)) {
            until = uint64(block.timestamp) + r.terms.evictionTime;
            r.stages[member.stage].returns_[member.replica] = Return(account, uint40(until));
        }
        member.asked = Asked.No;
        emit Evicted(run, account, member.replica, member.stage, until);
    }

    /// @notice Deals the holders of a complete replica that some stage did not count for three rounds among the seats of
    /// their stages (some, for who breaks a replica may hand in made-up work of its own), because nobody can prove which of them broke it: each changes places with a holder of its stage (possibly
    /// itself) that the seals so far draw. Anyone may call this.
    function deal(bytes32 run, uint16 replica) external {
        Run storage r = _run(run);
        r.requireOpen();
        if ((r.progress.complete >> replica) & 1 == 0) revert ReplicaIncomplete(replica);
        uint32 fromRound = r.replicas[replica].since + uint32(Runs.UNCOUNTED_ROUNDS);
        if (r.progress.openRound < fromRound) revert TooEarlyToDeal(replica, fromRound);
        uint256 stages = r.terms.stages;
        uint256 most = 0;
        for (uint256 stage = 0; stage < stages; ++stage) {
            // slither-disable-next-line unused-return: seals do not matter here
            (, uint256 rounds) = r.uncounted(stage, replica);
            if (rounds > most) most = rounds;
        }
        if (most < Runs.UNCOUNTED_ROUNDS) revert TooEarlyToDeal(replica, r.progress.openRound + 1);
        bool dealt = false;
        for (uint256 stage = 0; stage < stages; ++stage) {
            uint256 seated = r.stages[stage].activity.seated;
            uint256 drawn = uint256(keccak256(abi.encode(r.progress.draw, r.progress.openRound, replica, stage)));
            for (drawn %= seated.size(); drawn != 0; --drawn) {
                seated &= seated - 1;
            }
            uint256 other = seated.lowest();
            if (other == replica) continue;
            dealt = true;
            r.swap(stage, replica, other);
            emit Dealt(run, uint16(stage), replica, uint16(other));
        }
        if (!dealt) revert NothingDealt(replica);
        r.replicas[replica].since = r.progress.openRound;
    }

    // ------------------------------------------------------------------------------------------------ verdicts

    /// @notice Takes the seat of an account whose contribution to (stage, round) enough holders of the stage's votes found
    /// false or withheld, and any seat to come; whether it holds one now, and where, changes nothing. Its stage's next
    /// seal may still count it, as if it had left. Anyone may send this.
    /// @param statement the contribution's name
    /// @param entries verdicts, see Verdicts; those of anybody else are skipped
    function convict(
        bytes32 run,
        uint16 stage,
        uint32 round,
        address account,
        bytes32 statement,
        bytes calldata entries
    ) external {
        Run storage r = _run(run);
        Standing storage standing = r.standings[account];
        if (standing.convicted) revert IsConvicted(account);
        if ((standing.stages >> stage) & 1 == 0) revert NeverHeld(account, stage);
        if (entries.length % Verdicts.ENTRY_BYTES != 0) revert SignaturesLength(entries.length);

        uint256 voted = 0;
        for (uint256 start = 0; start < entries.length; start += Verdicts.ENTRY_BYTES) {
            bytes calldata entry = entries[start:start + Verdicts.ENTRY_BYTES];
            if (!entry.entryOf(0).convicts()) continue;
            bytes32 verdict = Verdicts.hash(run, stage, round, account, statement, entry);
            Member storage signer = r.members[entry.signer(Verdicts.SIGNATURE_AT, _hashTypedDataV4(verdict))];
            if (signer.holds && signer.stage == stage) voted |= 1 << signer.replica;
        }
        (uint256 seats, uint256 needed) = r.jury(stage, account);
        uint256 votes = (voted & seats).size();
        if (votes < needed) revert QuorumMissing(votes, needed);

        standing.convicted = true;
        Member storage member = r.members[account];
        // slither-disable-next-line unused-return: it has no term to come back
        if (member.holds) r.release(member);
        emit Convicted(run, account, stage, round, statement, entries);
    }

    // --------------------------------------------------------------------------------------------------- seals

    /// @notice Closes (stage, round). Anyone may send it; the first valid seal wins, and how it was sent changes nothing.
    function seal(Seal calldata s) external {
        Run storage r = _run(s.run);
        Terms memory terms = r.terms;
        Progress memory progress = r.progress;
        _checkPlace(terms, progress, s);
        _checkOutcome(terms, s);

        Stage storage stage = r.stages[s.stage];
        Activity memory activity = stage.activity;
        bytes32 digest = _hashTypedDataV4(s.hash(stage.head));
        uint256 earned = stage.earnedVotes(terms.maxReplicas, activity.nonEmpty);
        // slither-disable-next-line uninitialized-local: memory begins as zeros
        Signed memory signed;
        (signed.stage, signed.round) = (s.stage, s.round);
        signed.settled = activity.seated & ~activity.changed;
        signed.voters = r.electorate(earned, activity.seated);
        signed.listed = _readRecords(s);
        _readSignatures(r, stage, s, digest, signed);
        if (signed.made != signed.listed) revert RecordUnsigned((signed.listed & ~signed.made).lowest());
        if (earned == 0) {
            // Whoever took a seat that somebody left this round shares its vote: else one seat is two for a pair of accounts.
            signed.voted |= signed.formerVoted & signed.voters;
            signed.formerVoted &= ~signed.voters;
        }
        _checkQuorum(terms, progress.openedAt, signed, earned != 0, activity.nonEmpty != 0);

        stage.head = digest;
        _noteCounts(stage, terms, activity, signed);
        _close(r, terms, progress, s.stage, digest);
        emit Sealed(s.run, s.stage, s.round, digest, s.outcome, s.records, s.signatures);
    }

    /// @dev What the signatures of a seal came to; the bitmaps have a bit for each replica of the stage.
    struct Signed {
        uint256 stage;
        uint256 round;
        uint256 settled; // seats whose holders make their records
        uint256 voters;
        uint256 listed; // replicas that have a record
        uint256 voted;
        uint256 formerVoted; // of those without the seat that they voted by, by whose record they make
        uint256 made; // records whose makers are known
        uint256 counted; // the seats of these makers
    }

    function _checkPlace(Terms memory terms, Progress memory p, Seal calldata s) private view {
        if (s.stage >= terms.stages) revert UnknownStage(s.stage);
        if (p.openedAt == 0) revert Runs.RoundNotOpen();
        if (p.openRound == terms.rounds) revert Runs.RunFinished();
        if (s.round != p.openRound) revert WrongRound(s.round, p.openRound);
        if ((p.sealedStages >> s.stage) & 1 == 1) revert AlreadySealed(s.stage, s.round);
        _requireTime(uint256(p.openedAt) + terms.minRoundTime);
    }

    function _checkOutcome(Terms memory terms, Seal calldata s) private pure {
        Outcome calldata o = s.outcome;
        (uint256 current, uint256 next) = o.innerSteps();
        if (current == 0 || current > terms.maxInnerSteps) revert WrongPlan();
        if (next == 0 || next > terms.maxInnerSteps) revert WrongPlan();
        if (s.records.length % Seals.RECORD_BYTES != 0) revert RecordsLength(s.records.length);
        if (s.records.length == 0 && !_changesNothing(o)) revert EmptySealChangesState();
    }

    function _changesNothing(Outcome calldata o) private pure returns (bool) {
        return (o.weights | o.momentum | o.weightsRoot | o.momentumRoot) == 0;
    }

    /// @dev Notes whose votes the signatures are, and which records their makers signed. The record of a replica is made
    /// by the account that held its seat at the stage's newest seal, or, where it was free, by the first that took it
    /// since and had no other; wherever it sits now. Signatures of anybody else are skipped.
    function _readSignatures(Run storage r, Stage storage stage, Seal calldata s, bytes32 digest, Signed memory signed)
        private
        view
    {
        bytes calldata signatures = s.signatures;
        if (signatures.length % Seals.ENTRY_BYTES != 0) revert SignaturesLength(signatures.length);
        uint256 settled = signed.settled;
        uint256 met = 0; // of the settled
        unchecked {
            for (uint256 start = 0; start < signatures.length; start += Seals.ENTRY_BYTES) {
                uint256 replica = signatures.entryOf(start);
                if (replica >= Seals.OF_RECORD) {
                    _readMaker(r, stage, s, start, signed);
                    continue;
                }
                address signer = signatures.signer(start + 1, digest);
                uint256 seat = 1 << replica;
                if (settled & seat != 0 && stage.isHolder(replica, signer)) met |= seat;
                else _readUnsettled(signed, r.members[signer], replica, true);
            }
        }
        signed.voted |= met & signed.voters;
        signed.made |= met & signed.listed;
        signed.counted |= met & signed.listed;
    }

    /// @dev Reads an entry that signs the contribution which a record shows.
    function _readMaker(Run storage r, Stage storage stage, Seal calldata s, uint256 start, Signed memory signed)
        private
        view
    {
        uint256 replica = s.signatures.entryOf(start) - Seals.OF_RECORD;
        uint256 seat = 1 << replica;
        if (signed.listed & seat == 0) return;
        bytes32 contribution = s.contributionHash((signed.listed & (seat - 1)).size());
        address maker = s.signatures.signer(start + 1, _hashTypedDataV4(contribution));
        if (signed.settled & seat == 0) {
            _readUnsettled(signed, r.members[maker], replica, false);
        } else if (stage.isHolder(replica, maker)) {
            signed.made |= seat;
            signed.counted |= seat;
        }
    }

    function _readUnsettled(Signed memory signed, Member memory member, uint256 replica, bool votes) private pure {
        if (member.stage != signed.stage) return;
        bool changed = member.changedRound == signed.round + 1;
        if (votes) _vote(signed, member, changed);
        if (!changed || member.formerReplica != replica || (signed.listed >> replica) & 1 == 0) return;
        signed.made |= 1 << replica;
        if (member.holds) signed.counted |= 1 << member.replica;
    }

    /// @dev Whoever lost or left its seat since the stage's newest seal has its vote once more.
    function _vote(Signed memory signed, Member memory member, bool changed) private pure {
        if (member.holds && (signed.voters >> member.replica) & 1 == 1) {
            signed.voted |= 1 << member.replica;
        } else if (changed && member.formerVote && member.formerReplica != Runs.NO_REPLICA) {
            // Whoever came late to a seat that others held has no record to be known by, and no vote that it earned.
            signed.formerVoted |= 1 << member.formerReplica;
        }
    }

    /// @dev The replicas that have a record, which must ascend.
    function _readRecords(Seal calldata s) private pure returns (uint256 listed) {
        bytes calldata records = s.records;
        // slither-disable-next-line unused-return: the next plan was checked with the outcome
        (uint256 most,) = s.outcome.innerSteps();
        unchecked {
            for (uint256 start = 0; start < records.length; start += Seals.RECORD_BYTES) {
                (uint256 replica, uint256 steps) = records.replicaAndSteps(start);
                if (listed >> replica != 0) revert RecordsNotAscending(replica);
                listed |= 1 << replica;
                if (steps - 1 >= most) revert WrongInnerSteps(steps, most); // none, or too many
            }
        }
        if (listed >> Runs.MAX_REPLICAS != 0) revert RecordsNotAscending(Runs.MAX_REPLICAS);
    }

    /// @dev Enough votes, and, before the round has timed out, as many contributions.
    function _checkQuorum(Terms memory terms, uint256 openedAt, Signed memory signed, bool earned, bool worked)
        private
        view
    {
        uint256 former = signed.formerVoted == 0 ? 0 : signed.formerVoted.size();
        uint256 votes = signed.voters.size() + former;
        uint256 needed = terms.quorum(votes);
        if (signed.listed.size() < needed) _requireTime(openedAt + terms.roundTimeout);
        uint256 overdue = openedAt + Runs.OVERDUE_TIMEOUTS * terms.roundTimeout;
        // A stage whose voters are gone waits for them before it belongs to those who came after them.
        if (!earned && worked) _requireTime(overdue);
        if (earned && block.timestamp >= overdue && votes / 2 + 1 < needed) needed = votes / 2 + 1;
        uint256 voted = signed.voted.size() + former;
        if (voted < needed) revert QuorumMissing(voted, needed);
    }

    function _noteCounts(Stage storage s, Terms memory terms, Activity memory activity, Signed memory signed) private {
        activity.changed = 0;
        if (signed.listed == 0) {
            if (activity.empties != type(uint16).max) ++activity.empties;
        } else {
            s.counts[0] = s.counts[0].push(signed.counted & type(uint32).max);
            if (terms.maxReplicas > 32) s.counts[1] = s.counts[1].push(signed.counted >> 32);
            ++activity.nonEmpty;
            activity.empties = 0;
            activity.workedAt = uint40(block.timestamp);
        }
        s.activity.write(activity);
    }

    /// @dev Opens the next round once all stages have sealed this one; after the last one there is none to open. The draw
    /// is known to all as soon as a seal is, and whoever proposes a seal or picks the moment of a deal can choose among a
    /// few; only a quorum's signatures make a digest.
    function _close(Run storage r, Terms memory terms, Progress memory p, uint256 stage, bytes32 digest) private {
        p.draw ^= uint56(uint256(digest));
        p.sealedStages |= uint64(1 << stage);
        if (p.sealedStages == type(uint64).max >> (64 - terms.stages)) {
            p.sealedStages = 0;
            ++p.openRound;
            p.openedAt = uint40(block.timestamp);
        }
        r.progress.write(p);
    }

    // --------------------------------------------------------------------------------------------------- views

    /// @notice What the run was created with.
    function runConfig(bytes32 run) external view returns (RunConfig memory) {
        return _run(run).config;
    }

    /// @notice The open round and its opening time, which may be to come; none is open before enough replicas are
    /// complete and after the last.
    function openRound(bytes32 run) external view returns (bool open, uint32 round, uint64 openedAt) {
        Progress storage p = _run(run).progress;
        return (p.openedAt != 0 && p.openRound < _runs[run].terms.rounds, p.openRound, p.openedAt);
    }

    /// @notice The stage's lowest unsealed round; the run's number of rounds once all are sealed.
    function nextRound(bytes32 run, uint16 stage) external view returns (uint32) {
        return _run(run).nextRound(stage);
    }

    /// @notice The digest of the stage's newest seal, which the next one names; before the first one the weights hash of
    /// V[s,0].
    function head(bytes32 run, uint16 stage) external view returns (bytes32) {
        return _run(run).stages[stage].head;
    }

    /// @notice The seat's holder; zero where it is free.
    function holderOf(bytes32 run, uint16 replica, uint16 stage) external view returns (address) {
        return _run(run).stages[stage].holders[replica];
    }

    /// @notice All that the run knows of an account, whether or not it holds a seat now.
    function memberOf(bytes32 run, address account) external view returns (Member memory) {
        return _run(run).members[account];
    }

    /// @notice In which stages the account ever held a seat, and whether it was convicted.
    function standingOf(bytes32 run, address account) external view returns (Standing memory) {
        return _run(run).standings[account];
    }

    /// @notice Which site named the account its own, and until when the others of it may seat it.
    function enlistedOf(bytes32 run, address account) external view returns (Enlisted memory) {
        return _run(run).enlisted[account];
    }

    /// @notice Which replicas' seats of the stage are held, which were counted once and twice in its last eight non-empty
    /// seals (a bit for each), how many non-empty seals there were, and how many empty ones since the last of them.
    function stageOf(bytes32 run, uint16 stage)
        external
        view
        returns (uint64 seated, uint64 once, uint64 twice, uint32 nonEmpty, uint16 empties)
    {
        Run storage r = _run(run);
        Stage storage s = r.stages[stage];
        Activity storage a = s.activity;
        uint16 max = r.terms.maxReplicas;
        return (a.seated, uint64(s.countedSeats(max, 1)), uint64(s.countedSeats(max, 2)), a.nonEmpty, a.empties);
    }

    /// @notice The seats whose holders vote on the stage's next seal (a bit for each), and how many votes it needs while
    /// its round is not overdue.
    function quorumOf(bytes32 run, uint16 stage) external view returns (uint64 voters, uint256 needed) {
        Run storage r = _run(run);
        uint256 seats = r.voters(stage);
        return (uint64(seats), r.terms.quorum(seats.size()));
    }

    /// @notice Whether only work can keep the account's seat now.
    function isForfeit(bytes32 run, address account) external view returns (bool) {
        Run storage r = _run(run);
        return r.isForfeit(r.holder(account));
    }

    // ------------------------------------------------------------------------------------------------- helpers

    function _run(bytes32 run) private view returns (Run storage r) {
        r = _runs[run];
        if (r.terms.stages == 0) revert UnknownRun(run);
    }

    /// @dev The account's membership, which can get a seat.
    function _newcomer(Run storage r, address account) private view returns (Member storage member) {
        if (!registry.isRegistered(account)) revert NotRegistered(account);
        if (r.standings[account].convicted) revert IsConvicted(account);
        member = r.members[account];
        if (member.holds) revert AlreadyHolding(account, member.replica, member.stage);
        if (r.progress.openRound == r.terms.rounds) revert Runs.RunFinished();
    }

    function _seat(
        bytes32 run,
        Run storage r,
        Member storage member,
        address account,
        uint256 replica,
        uint16 stage
    ) private {
        uint32 next = r.nextRound(member.stage);
        if (stage != member.stage && member.changedRound == next + 1) revert SealPending(member.stage, next);
        r.take(member, account, replica, stage);
        if (r.enlisted[account].until != 0) r.enlisted[account].until = 0;
        emit Joined(run, account, uint16(replica), stage);
    }

    function _freeSeat(Run storage r, uint16 stage) private view returns (uint256 replica, uint16 found) {
        replica = Runs.MAX_REPLICAS;
        if (stage != ANY_STAGE) {
            (replica, found) = (r.freeSeat(stage, msg.sender), stage);
        } else {
            for (uint16 each = 0; each < r.terms.stages; ++each) {
                uint256 lowest = r.freeSeat(each, msg.sender);
                if (lowest < replica) (replica, found) = (lowest, each);
            }
        }
        if (replica == Runs.MAX_REPLICAS) revert Runs.NoFreeSeat(stage);
    }

    /// @dev Opens round 0 once enough replicas are complete; it stays open, whoever leaves.
    function _openFirst(bytes32 run, Run storage r) private {
        if (r.progress.openedAt != 0) return;
        if (uint256(r.progress.complete).size() < r.terms.minReplicas) return;
        uint64 start = r.config.startTime;
        uint40 openedAt = uint40(start > block.timestamp ? start : block.timestamp);
        r.progress.openedAt = openedAt;
        r.startedAt = openedAt;
        emit RunOpened(run, openedAt);
    }

    function _isTimedOut(Run storage r) private view returns (bool) {
        return block.timestamp > uint256(r.progress.openedAt) + r.terms.roundTimeout;
    }

    function _isUncounted(Run storage r, Member storage member) private view returns (bool) {
        // slither-disable-next-line unused-return: seals do not matter here
        (, uint256 rounds) = r.uncounted(member.stage, member.replica);
        return rounds >= Runs.UNCOUNTED_ROUNDS
            && r.nextRound(member.stage) >= member.joinedRound + Runs.UNCOUNTED_ROUNDS;
    }

    function _requireTime(uint256 fromTime) private view {
        if (block.timestamp < fromTime) revert TooEarlyToSeal(fromTime);
    }
}
