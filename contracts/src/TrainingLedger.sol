// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";

import {Bitmaps} from "./Bitmaps.sol";
import {Deployed} from "./Deployed.sol";
import {IBonds, IInvitations, ILedger} from "./ILedger.sol";
import {Membership, Surroundings} from "./Membership.sol";
import {NodeRegistry} from "./NodeRegistry.sol";
import {Activity, Member, Progress, Run, RunConfig, Runs, Stage, Standing, Stay, Terms} from "./Runs.sol";
import {Outcome, Seal, Seals} from "./Seals.sol";
import {Enlisted} from "./Sites.sol";
import {Absent, Weights} from "./Weights.sol";

/// @title Who holds which slot of a run, and which contributions each round counted
/// @notice Nobody owns the ledger, nothing in it can be upgraded, and a sealed round can never be changed.
contract TrainingLedger is EIP712, Deployed, ILedger {
    using Bitmaps for uint256;
    using Runs for Run;
    using Runs for Stage;
    using Runs for Activity;
    using Runs for Progress;
    using Seals for Outcome;
    using Seals for Seal;
    using Seals for bytes;
    using Weights for uint256;
    using Weights for uint256[8];
    using Weights for uint256[2];

    /// @notice For joinRun: take any stage.
    uint16 public constant ANY_STAGE = Membership.ANY_STAGE;

    /// @notice Who may join: accounts that have a node there.
    NodeRegistry public immutable registry;
    /// @notice Who may join an invited run.
    IInvitations public immutable invitations;
    /// @notice What a slot locks where the run asks for it.
    IBonds public immutable bonds;

    mapping(bytes32 run => Run) private _runs;

    /// @notice How many runs were created: who has read fewer of these events lacks some.
    uint256 public runs;

    constructor(NodeRegistry registry_, IInvitations invitations_, IBonds bonds_)
        EIP712("dlx-node TrainingLedger", "3")
    {
        (registry, invitations, bonds) = (registry_, invitations_, bonds_);
    }

    // ---------------------------------------------------------------------------------------------------- runs

    /// @notice Creates a run.
    /// @param name what people call it, as in the manifest; it is only in the event, and other runs may have the same
    /// @param genesis the weights hash of V[s, 0] for each stage s
    /// @param founders whose signature each seal carries until a stage's work has weight of its own
    function createRun(
        RunConfig calldata config,
        string calldata name,
        bytes32[] calldata genesis,
        address[] calldata founders
    ) external returns (bytes32 run) {
        Runs.check(config);
        Runs.checkName(bytes(name));
        if (genesis.length != config.stages) revert InvalidConfig("genesis");
        if (founders.length == 0 || founders.length > Runs.MAX_FOUNDERS) revert InvalidConfig("founders");

        run = keccak256(abi.encode(block.chainid, address(this), msg.sender, config.manifest));
        Run storage r = _runs[run];
        if (r.creator != address(0)) revert RunExists(run);
        r.creator = msg.sender;
        r.config = config;
        r.terms = Runs.termsOf(config);
        for (uint256 stage = 0; stage < genesis.length; ++stage) {
            if (genesis[stage] == 0) revert InvalidConfig("genesis");
            r.stages[stage].head = genesis[stage];
        }
        for (uint256 i = 0; i < founders.length; ++i) {
            if (founders[i] == address(0)) revert InvalidConfig("founders");
            r.founders[founders[i]] = true;
        }
        ++runs;
        emit RunCreated(run, msg.sender, config, name, genesis, founders);
    }

    /// @notice Says where version V[., round] of all stages can be fetched as a checkpoint.
    /// @param folder the sha256 of the checkpoint's list of files; whoever pulls the version makes the same list
    function publishCheckpoint(bytes32 run, uint32 round, bytes32 folder, string calldata uri) external {
        Run storage r = _run(run);
        if (msg.sender != r.creator && !r.members[msg.sender].holds) revert NotHolding(msg.sender);
        if (round > r.progress.openRound) revert UnknownVersion(round);
        if (bytes(uri).length > Runs.MAX_URI_BYTES) revert UriTooLong(bytes(uri).length, Runs.MAX_URI_BYTES);
        emit CheckpointPublished(run, round, msg.sender, folder, uri);
    }

    /// @notice Says how good version V[., version] is on held-out data. Readers count the first word of each account that
    /// was drawn to say it, and take the lower median.
    /// @param sum of the losses of all `count` tokens, in micronats
    /// @param statement the sha256 of what the sender signed of its part of the computation
    function evaluate(bytes32 run, uint32 version, uint64 sum, uint32 count, bytes32 statement) external {
        Run storage r = _run(run);
        Member memory member = r.members[msg.sender];
        if (!member.holds || member.stage + 1 != r.terms.stages) revert NotHolding(msg.sender);
        if (version == 0 || version > r.progress.openRound) revert UnknownVersion(version);
        if (count == 0) revert NothingEvaluated();
        emit Evaluated(run, msg.sender, version, sum, count, statement);
    }

    // ------------------------------------------------------------------------------------------------- members

    /// @notice Gives the sender a slot: in the lowest replica where that of `stage` is free, or, for ANY_STAGE, the
    /// lowest free slot of any stage. An evicted member gets its own one back as long as it waits for it.
    function joinRun(bytes32 run, uint16 stage) external {
        Membership.join(_run(run), _surroundings(), run, stage);
    }

    /// @notice Lets the other machines of the sender's site place it, until then and once, in any stage; `stage` says which
    /// one it asks for. It takes no slot from anybody, and keeps none free.
    /// @param signature the site key's EIP-712 signature over SiteMember(run, sender): its maker is the site
    function enlist(bytes32 run, uint16 stage, uint40 until, bytes calldata signature) external {
        Membership.enlist(_run(run), _surroundings(), run, stage, until, signature);
    }

    /// @notice Slots machines of the sender's site so that all slots of the replica are theirs: in one transaction, so
    /// nobody can come between, and nothing is kept for who never comes.
    /// @param accounts one for each stage, in their order: enlisted, or already in this slot
    function joinSite(bytes32 run, uint16 replica, address[] calldata accounts) external {
        Membership.joinSite(_run(run), _surroundings(), run, replica, accounts);
    }

    /// @notice Moves a holder of an incomplete replica to the lowest replica where its stage is free.
    function moveDown(bytes32 run) external {
        Membership.moveDown(_run(run), run);
    }

    /// @notice Gives the sender's slot back. It takes effect at its stage's next seal, which may still count it.
    function leaveRun(bytes32 run) external {
        Membership.giveBack(_run(run), bonds, run);
    }

    /// @notice Asks a holder whether it is still there. A holder may ask another once the round has timed out, or once
    /// it was not counted for three rounds. Anyone may ask whose slot is forfeit (Runs.isForfeit), and everybody once
    /// the round has been open for 32 timeouts.
    function accuse(bytes32 run, address account) external {
        Membership.accuse(_run(run), run, account);
    }

    /// @notice The accused sender is still there. Where its slot is forfeit, that wins it time to be counted; once it
    /// was, it may answer again and is not accused any more.
    function answer(bytes32 run) external {
        Membership.answer(_run(run), run);
    }

    /// @notice Frees the slot of an accused holder that did not answer in time, or whose slot is lost (Runs.isLost). One
    /// that was counted lately may take it again, alone, for as long once more. Its weight stays its own, and fades.
    function evict(bytes32 run, address account) external {
        Membership.evict(_run(run), bonds, run, account);
    }

    /// @notice Frees the slot of a holder where two thirds of its stage's weight are still, or again, the founders', of
    /// whom the sender is one; or as much as the holder's, where any stage stands still: its last 32 seals were empty, or
    /// of 64 and more all but an eighth.
    /// @param successor who alone can take the slot for the eviction time; zero: anyone can, after this second
    function dismiss(bytes32 run, address account, address successor) external {
        Membership.dismiss(_run(run), bonds, run, account, successor);
    }

    /// @notice Gives the sender, which left weight in a full stage, the slot there of a holder that has not been counted
    /// and has less than an eighth of it, once the stage has not sealed the open round for eight round timeouts. So who
    /// takes slots while their holders are away does not stop the stage with them. Not where a stage stands still and
    /// founders have no less weight than the sender (see dismiss).
    function reclaim(bytes32 run, address account) external {
        Membership.reclaim(_run(run), _surroundings(), run, account);
    }

    /// @notice Deals the holders of a complete replica that some stage did not count for three rounds among the slots of
    /// their stages (some, for who breaks a replica may hand in made-up work of its own), because nobody can prove which
    /// of them broke it: each changes places with a holder of its stage (possibly itself) that the seals so far draw.
    /// Anyone may call this.
    function deal(bytes32 run, uint16 replica) external {
        Membership.deal(_run(run), run, replica);
    }

    /// @notice Takes the slot of an account whose contribution to (stage, round) was found false or withheld by who has
    /// two thirds of the stage's weight beside its own, and three fifths of all; and its weight, and any slot to come.
    /// Whether it holds one now, and where, changes nothing. Its stage's next seal may still count it. Anyone may send this.
    /// @param statement the contribution's name
    /// @param entries verdicts, see Verdicts, their signers ascending; those of anybody else are skipped
    function convict(
        bytes32 run,
        uint16 stage,
        uint32 round,
        address account,
        bytes32 statement,
        bytes calldata entries
    ) external {
        Membership.Charge memory charge = Membership.Charge(run, stage, round, account, statement);
        Membership.convict(_run(run), _surroundings(), charge, entries);
    }

    // --------------------------------------------------------------------------------------------------- seals

    /// @notice Closes (stage, round). Anyone may send it; the first valid seal wins.
    function seal(Seal calldata s) external {
        Run storage r = _run(s.run);
        Terms memory terms = r.terms;
        Progress memory progress = r.progress;
        _checkPlace(terms, progress, s);
        _checkOutcome(terms, s);

        Stage storage stage = r.stages[s.stage];
        Activity memory activity = stage.activity;
        bytes32 digest = _hashTypedDataV4(s.hash(stage.head));
        Signed memory signed;
        (signed.stage, signed.round) = (s.stage, s.round);
        signed.settled = activity.held & ~activity.changed;
        signed.seals = activity.nonEmpty;
        (signed.listed, signed.steps) = _readRecords(s);
        _readSignatures(r, stage, terms, s, digest, signed);
        uint256 unsigned = signed.listed & ~signed.slots;
        if (unsigned != 0) revert RecordUnsigned(unsigned.lowest());
        uint256[8] memory words = _wordsOf(stage, activity.lanes);
        uint256 absent = activity.absent ? r.absentNow(stage).forSeals >> Weights.FRACTION : 0;
        _checkQuorum(terms, progress.openedAt, signed, words, activity.lanes, absent);

        stage.head = digest;
        if (signed.listed == 0) {
            if (activity.empties != type(uint8).max) ++activity.empties;
        } else {
            _count(stage, terms, activity, s, signed, words);
        }
        activity.changed = 0;
        stage.activity.write(activity);
        _close(r, terms, progress, s.stage, digest);
        emit Sealed(s.run, s.stage, s.round, digest, s.outcome, s.records, s.signatures);
    }

    /// @dev What the signatures of a seal came to.
    struct Signed {
        uint256 stage;
        uint256 round;
        uint256 seals; // the stage's non-empty ones so far
        uint256 steps; // of all records
        uint256 settled; // a bit for each slot whose holder makes its record
        uint256 listed; // and for each replica that has a record
        uint256 slots; // and for each of them whose record's maker is known, and holds a slot: 64 bits each
        uint256 lanes; // a bit for each lane whose account signed the seal, and for each that made a record: likewise
        uint256 absentVotes; // the weight of those who signed the seal and hold no slot
        uint256 absentMakers; // likewise of makers
        address lastAbsent; // they ascend
        bool founder; // whether one of them signed
        uint256[2] laneOf; // a byte for each replica: the lane of the one that made its record
    }

    uint256 private constant MADE = 1; // in Signed.slots
    uint256 private constant CREDITED = 1 << 64;
    uint256 private constant VOTED = 1; // in Signed.lanes
    uint256 private constant MADE_RECORD = 1 << 64;

    function _checkPlace(Terms memory terms, Progress memory p, Seal calldata s) private view {
        if (s.stage >= terms.stages) revert UnknownStage(s.stage);
        if (p.openedAt == 0) revert RoundNotOpen();
        if (p.openRound == terms.rounds) revert RunFinished();
        if (s.round != p.openRound) revert WrongRound(s.round, p.openRound);
        if ((p.sealedStages >> s.stage) & 1 == 1) revert AlreadySealed(s.stage, s.round);
        _requireTime(uint256(p.openedAt) + terms.minRoundTime);
    }

    function _checkOutcome(Terms memory terms, Seal calldata s) private pure {
        Outcome calldata o = s.outcome;
        (uint256 current, uint256 next) = o.innerSteps();
        if (current == 0 || current > terms.maxInnerSteps) revert WrongPlan();
        if (next > terms.maxInnerSteps) revert WrongPlan(); // none: there is no such round
        if (s.records.length % Seals.RECORD_BYTES != 0) revert RecordsLength(s.records.length);
        if (s.records.length == 0 && !_changesNothing(o)) revert EmptySealChangesState();
    }

    function _changesNothing(Outcome calldata o) private pure returns (bool) {
        return (o.weights | o.momentum | o.weightsRoot | o.momentumRoot) == 0;
    }

    /// @dev Notes whose votes the signatures are, and which records their makers signed. The record of a replica is made
    /// by the account that held its slot at the stage's newest seal, or, where it was free, by the first that took it
    /// since and had no other; wherever it sits now. Signatures of anybody else are skipped.
    function _readSignatures(
        Run storage r,
        Stage storage stage,
        Terms memory terms,
        Seal calldata s,
        bytes32 digest,
        Signed memory signed
    ) private view {
        bytes calldata signatures = s.signatures;
        if (signatures.length % Seals.ENTRY_BYTES != 0) revert SignaturesLength(signatures.length);
        (uint256 settled, uint256 listed) = (signed.settled, signed.listed);
        unchecked {
            for (uint256 start = 0; start < signatures.length; start += Seals.ENTRY_BYTES) {
                uint256 replica = signatures.entryOf(start);
                if (replica >= Seals.OF_RECORD) {
                    if (replica < Seals.OF_FOUNDER) _readMaker(r, stage, terms, s, start, signed);
                    else if (r.founders[signatures.signer(start + 1, digest)]) signed.founder = true;
                    continue;
                }
                address signer = signatures.signer(start + 1, digest);
                if ((settled >> replica) & 1 == 1) {
                    (bool holds, uint256 lane) = stage.laneAt(replica, signer);
                    if (holds) {
                        if ((listed >> replica) & 1 == 0) {
                            signed.lanes |= VOTED << lane;
                        } else {
                            _settle(signed, replica, lane, MADE | CREDITED, VOTED | MADE_RECORD);
                        }
                        continue;
                    }
                }
                _readUnsettled(signed, terms, r.members[signer], signer, replica, true);
            }
        }
    }

    /// @dev Reads an entry that signs the contribution which a record shows.
    function _readMaker(
        Run storage r,
        Stage storage stage,
        Terms memory terms,
        Seal calldata s,
        uint256 start,
        Signed memory signed
    ) private view {
        uint256 replica = s.signatures.entryOf(start) - Seals.OF_RECORD;
        if ((signed.listed >> replica) & 1 == 0) return;
        bytes32 contribution = s.contributionHash((signed.listed & ((1 << replica) - 1)).size());
        address maker = s.signatures.signer(start + 1, _hashTypedDataV4(contribution));
        if ((signed.settled >> replica) & 1 == 0) {
            _readUnsettled(signed, terms, r.members[maker], maker, replica, false);
        } else {
            (bool holds, uint256 lane) = stage.laneAt(replica, maker);
            if (holds) _settle(signed, replica, lane, MADE | CREDITED, MADE_RECORD);
        }
    }

    /// @dev The maker of the replica's record is known, and has this lane.
    function _settle(Signed memory signed, uint256 replica, uint256 lane, uint256 ofSlot, uint256 ofLane) private pure {
        signed.slots |= ofSlot << replica;
        signed.lanes |= ofLane << lane;
        signed.laneOf.put(replica, lane);
    }

    /// @dev Of somebody who does not simply sit where it sat at the stage's newest seal.
    function _readUnsettled(
        Signed memory signed,
        Terms memory terms,
        Member memory member,
        address account,
        uint256 replica,
        bool votes
    ) private view {
        if (member.stage != signed.stage) return;
        uint256 weight = member.holds ? 0 : Runs.absentWeight(member, terms, signed.seals, true);
        if (votes && member.holds) {
            signed.lanes |= VOTED << member.lane;
        } else if (votes && account > signed.lastAbsent) {
            signed.lastAbsent = account;
            signed.absentVotes += weight;
        }
        bool makes = member.changedRound == signed.round + 1 && member.formerReplica == replica;
        if (!makes || (signed.listed >> replica) & 1 == 0) return;
        if (member.holds) {
            _settle(signed, replica, member.lane, MADE | CREDITED, MADE_RECORD);
        } else if ((signed.slots >> replica) & 1 == 0) {
            signed.slots |= MADE << replica;
            signed.absentMakers += weight;
        }
    }

    /// @dev The replicas that have a record, which must ascend, and their steps.
    function _readRecords(Seal calldata s) private pure returns (uint256 listed, uint256 total) {
        bytes calldata records = s.records;
        // slither-disable-next-line unused-return: the next plan was checked with the outcome
        (uint256 most,) = s.outcome.innerSteps();
        unchecked {
            for (uint256 start = 0; start < records.length; start += Seals.RECORD_BYTES) {
                (uint256 replica, uint256 steps) = records.replicaAndSteps(start);
                if (listed >> replica != 0) revert RecordsNotAscending(replica);
                listed |= 1 << replica;
                if (steps - 1 >= most) revert WrongInnerSteps(steps, most); // none, or too many
                total += steps;
            }
        }
        if (listed >> Runs.MAX_REPLICAS != 0) revert RecordsNotAscending(Runs.MAX_REPLICAS);
    }

    function _wordsOf(Stage storage stage, uint256 lanes) private view returns (uint256[8] memory words) {
        for (uint256 i = 0; lanes != 0; (lanes >>= Weights.LANES, ++i)) {
            if (lanes & 0xff != 0) words[i] = stage.words[i];
        }
    }

    /// @dev The run's part of the weight: the longer the round is late, the less counts of those who are silent, but a
    /// third of all at least. And, before it has timed out, as much of the makers of the records.
    function _checkQuorum(
        Terms memory terms,
        uint256 openedAt,
        Signed memory signed,
        uint256[8] memory words,
        uint256 lanes,
        uint256 absent
    ) private view {
        (uint256 total, uint256 votes, uint256 makers) = (0, signed.absentVotes, signed.absentMakers);
        uint256 voted = signed.lanes;
        unchecked {
            for (uint256 i = 0; lanes >> (Weights.LANES * i) != 0; ++i) {
                uint256 word = words[i];
                total += word.sum();
                votes += word.sum((voted >> (Weights.LANES * i)) & 0xff);
                makers += word.sum((voted >> (64 + Weights.LANES * i)) & 0xff);
            }
        }
        total += absent > signed.absentVotes ? absent : signed.absentVotes;
        uint256 vacuum = Runs.vacuum(total);
        total += vacuum;
        if (signed.founder) (votes, makers) = (votes + vacuum, makers + vacuum);

        (uint256 numerator, uint256 denominator) = (terms.quorumNumerator, terms.quorumDenominator);
        uint256 timeout = openedAt + terms.roundTimeout;
        uint256 late = block.timestamp > timeout ? block.timestamp - timeout : 0;
        uint256 counted = votes + (total - votes).faded(late, Weights.LATE_TIMEOUTS * terms.roundTimeout);
        uint256 needed = (numerator * counted + denominator - 1) / denominator;
        if (3 * needed < total) needed = (total + 2) / 3;
        if (votes < needed) revert QuorumMissing(votes, needed);
        if (signed.listed == 0 || makers * denominator < numerator * total) _requireTime(timeout);
    }

    /// @dev The seal's weight and pay go to the lanes of those whom it counts, by their steps. `part` rounds so that each
    /// seal adds the same in all, and that over sixteen of them chance favours nobody.
    function _count(
        Stage storage stage,
        Terms memory terms,
        Activity memory activity,
        Seal calldata s,
        Signed memory signed,
        uint256[8] memory words
    ) private {
        uint256 epoch = signed.round / Weights.EPOCH_ROUNDS;
        if (epoch != activity.epoch) {
            _keepPays(stage, activity, words);
            (activity.epoch, activity.epochSeals) = (uint16(epoch), 0);
        }
        (uint256 lanes, uint256 jitter) = (activity.lanes, Weights.jitter(activity.nonEmpty, terms.shift));
        for (uint256 i = 0; lanes >> (Weights.LANES * i) != 0; ++i) {
            words[i] = words[i].age(terms.shift, jitter);
        }
        _credit(terms.shift, activity.nonEmpty, s.records, signed, words);
        for (uint256 i = 0; lanes != 0; (lanes >>= Weights.LANES, ++i)) {
            if (lanes & 0xff != 0) stage.words[i] = words[i];
        }
        ++activity.nonEmpty;
        ++activity.epochSeals;
        activity.empties = 0;
    }

    function _credit(uint256 shift, uint256 seals, bytes calldata records, Signed memory signed, uint256[8] memory words)
        private
        pure
    {
        (uint256 unit, uint256 steps, uint256 credited) = (Weights.FULL >> shift, signed.steps, signed.slots >> 64);
        uint256[2] memory laneOf = signed.laneOf;
        unchecked {
            uint256 offset = (steps * (seals % Weights.EPOCH_ROUNDS)) / Weights.EPOCH_ROUNDS;
            (uint256 sum, uint256 before) = (0, 0); // of the records before
            for (uint256 start = 0; start < records.length; start += Seals.RECORD_BYTES) {
                (uint256 replica, uint256 own) = records.replicaAndSteps(start);
                sum += own;
                uint256 earned = Weights.part(unit, sum, offset, steps);
                if ((credited >> replica) & 1 == 1) words.credit(laneOf.byteOf(replica), earned - before);
                before = earned;
            }
        }
    }

    /// @dev An epoch is over: what its lanes have earned stays with it.
    function _keepPays(Stage storage stage, Activity memory activity, uint256[8] memory words) private {
        uint256[8] storage paid = stage.paid[activity.epoch];
        for (uint256 i = 0; i < words.length; ++i) {
            uint256 pays = i == 0 ? activity.epochSeals : 0;
            if (words[i] != 0) {
                uint256 earned;
                (earned, words[i]) = words[i].takePay();
                pays |= earned;
            }
            if (pays != 0) paid[i] = pays;
        }
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

    /// @notice What its proofs need to know of the outer step, see OuterProofs; 0: no version of it can be disproved.
    function outerOf(bytes32 run) external view returns (bytes32) {
        return _run(run).config.outer;
    }

    function creatorOf(bytes32 run) external view returns (address) {
        return _run(run).creator;
    }

    function isFounder(bytes32 run, address account) external view returns (bool) {
        return _run(run).founders[account];
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

    /// @notice The slot's holder; zero where it is free.
    function holderOf(bytes32 run, uint16 replica, uint16 stage) external view returns (address) {
        return _run(run).stages[stage].holders[replica];
    }

    /// @notice All that the run knows of an account, whether or not it holds a slot now.
    function memberOf(bytes32 run, address account) external view returns (Member memory) {
        return _run(run).members[account];
    }

    /// @notice In which stages the account ever held a slot, and whether it was convicted.
    function standingOf(bytes32 run, address account) external view returns (Standing memory) {
        return _run(run).standings[account];
    }

    /// @notice Which site named the account its own, and until when the others of it may place it.
    function enlistedOf(bytes32 run, address account) external view returns (Enlisted memory) {
        return _run(run).enlisted[account];
    }

    /// @notice What the stage's seals and slots came to so far, and its lanes (see Weights).
    function stageOf(bytes32 run, uint16 stage)
        external
        view
        returns (Activity memory activity, uint256[8] memory words)
    {
        Stage storage s = _run(run).stages[stage];
        return (s.activity, s.words);
    }

    /// @notice What the weight of the stage is now: of those who hold its slots, of the absent, in seals and in verdicts,
    /// and what in seals is its founders'.
    function weightsOf(bytes32 run, uint16 stage)
        external
        view
        returns (uint256 held, uint256 absent, uint256 absentInVerdicts, uint256 vacuum)
    {
        Run storage r = _run(run);
        Stage storage s = r.stages[stage];
        Absent memory pool = r.absentNow(s);
        held = s.heldWeight();
        (absent, absentInVerdicts) = (pool.forSeals >> Weights.FRACTION, pool.forVerdicts >> Weights.FRACTION);
        return (held, absent, absentInVerdicts, Runs.vacuum(held + absent));
    }

    /// @notice The account's weight in seals of the stage where it holds or last held a slot.
    function weightOf(bytes32 run, address account) external view returns (uint256) {
        Run storage r = _run(run);
        Member memory member = r.members[account];
        return r.weightIn(member.stage, member, true);
    }

    /// @notice Whether only work can keep the account's slot now.
    function isForfeit(bytes32 run, address account) external view returns (bool) {
        Run storage r = _run(run);
        return r.isForfeit(r.holder(account));
    }

    /// @notice The account's stays, each in one lane. See earnedIn.
    function staysOf(bytes32 run, address account) external view returns (Stay[] memory) {
        return _run(run).stays[account];
    }

    /// @notice What an account earned of a stage's epoch that is over, in 255ths of a seal: in its stay of this number, or
    /// in the one that lasts, which is the number of those before.
    function earnedIn(bytes32 run, uint16 stage, uint32 epoch, address account, uint256 stay)
        external
        view
        returns (uint256)
    {
        return Membership.earnedIn(_run(run), stage, epoch, account, stay);
    }

    /// @notice How many non-empty seals the stage has in an epoch that is over.
    function sealsIn(bytes32 run, uint16 stage, uint32 epoch) external view returns (uint256) {
        return Membership.sealsIn(_run(run), stage, epoch);
    }

    // ------------------------------------------------------------------------------------------------- helpers

    function _run(bytes32 run) private view returns (Run storage r) {
        r = _runs[run];
        if (r.terms.stages == 0) revert UnknownRun(run);
    }

    function _surroundings() private view returns (Surroundings memory) {
        return Surroundings(registry, invitations, bonds, _domainSeparatorV4());
    }

    function _requireTime(uint256 fromTime) private view {
        if (block.timestamp < fromTime) revert TooEarlyToSeal(fromTime);
    }
}
