// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";

import {Contribution, Contributions} from "./Contributions.sol";
import {NodeRegistry} from "./NodeRegistry.sol";
import {Head, Member, Run, RunConfig, Runs} from "./Runs.sol";
import {Seal, Seals} from "./Seals.sol";

/// @title Who holds which slot of a run, and which contributions each round counted
/// @notice Nobody owns the ledger, nothing in it can be upgraded, and a sealed round can never be changed.
contract TrainingLedger is EIP712 {
    using Contributions for bytes;
    using Runs for Run;

    /// @notice For joinRun: take any stage.
    uint16 public constant ANY_STAGE = type(uint16).max;
    /// @notice An accused holder has the eviction time and at least this many blocks to answer.
    uint256 public constant ANSWER_BLOCKS = 5;
    uint256 private constant SIGNATURE_BYTES = 65;

    NodeRegistry public immutable registry;

    mapping(bytes32 run => Run) private _runs;

    event RunCreated(
        bytes32 indexed run, address indexed creator, RunConfig config, string name, bytes32[] genesis
    );
    event Joined(bytes32 indexed run, address indexed account, uint16 replica, uint16 stage);
    event Left(bytes32 indexed run, address indexed account, uint16 replica, uint16 stage);
    event Moved(bytes32 indexed run, address indexed account, uint16 fromReplica, uint16 toReplica, uint16 stage);
    event RoundOpened(bytes32 indexed run, uint32 indexed round, uint64 openedAt);
    event Accused(bytes32 indexed run, address indexed account, uint16 replica, uint16 stage, uint32 round, address by);
    event Answered(bytes32 indexed run, address indexed account);
    event Evicted(bytes32 indexed run, address indexed account, uint16 replica, uint16 stage);
    event Sealed(
        bytes32 indexed run,
        uint32 indexed round,
        uint16 indexed stage,
        bytes32 digest,
        Seal seal,
        bytes contributions,
        bytes signatures
    );
    event CheckpointPublished(
        bytes32 indexed run, uint32 indexed round, address indexed account, bytes32 weights, string uri
    );

    error UnknownRun(bytes32 run);
    error RunExists(bytes32 run);
    error NotRegistered(address account);
    error UnknownStage(uint16 stage);
    error AlreadyHolding(address account, uint16 replica, uint16 stage);
    error ReplicaComplete(uint16 replica);
    error AccusationPending(address account);
    error AlreadyAccused(address account, uint32 round);
    error TooEarlyToAccuse(address account);
    error NotAccused(address account);
    error TooEarlyToEvict(uint256 fromTime, uint256 fromBlock);
    error UnknownVersion(uint32 round);

    error WrongRound(uint32 given, uint32 next);
    error StageAhead(uint16 stage, uint32 openRound);
    error WrongPreviousWeights(bytes32 given, bytes32 head);
    error WrongPreviousMomentum(bytes32 given, bytes32 head);
    error WrongCount(uint256 given, uint256 actual);
    error WrongContributionsHash(bytes32 given, bytes32 actual);
    error WrongContributionsRoot(bytes32 given, bytes32 actual);
    error WrongTotalTokens(uint256 given, uint256 actual);
    error WrongMeanLoss(uint256 given, uint256 actual);
    error WrongMultipliersLength(uint256 given, uint256 expected);
    /// @notice The contribution names another run, round or stage than the seal.
    error ContributionOfAnotherRound(address account);
    error AccountsNotAscending(address account);
    error AccountWithoutSlot(address account, uint16 replica, uint16 stage);
    error WrongTokens(address account, uint256 given, uint256 expected);
    error EmptySealTooEarly(uint256 fromTime);
    error EmptySealChangesState();
    error SignaturesLength(uint256 length);
    error SignersNotAscending(address signer);
    error SignerWithoutSlot(address signer);
    error QuorumMissing(uint256 counted, uint256 needed);

    constructor(NodeRegistry registry_) EIP712("dlx-node TrainingLedger", "1") {
        registry = registry_;
    }

    // ---------------------------------------------------------------------------------------------------- runs

    /// @notice Creates a run.
    /// @param name what people call it, as in the manifest; it is only in the event, and other runs may have the same
    /// @param genesis_ the weights hash of V[s, 0] for each stage s
    function createRun(RunConfig calldata config, string calldata name, bytes32[] calldata genesis_)
        external
        returns (bytes32 run)
    {
        Runs.check(config);
        Runs.checkName(bytes(name));
        if (genesis_.length != config.stages) revert Runs.InvalidConfig("genesis");

        run = keccak256(abi.encode(block.chainid, address(this), msg.sender, config.manifest));
        Run storage r = _runs[run];
        if (r.creator != address(0)) revert RunExists(run);
        r.creator = msg.sender;
        r.config = config;
        for (uint256 stage = 0; stage < genesis_.length; ++stage) {
            r.genesis[stage] = genesis_[stage];
            r.heads[stage].weights = genesis_[stage];
        }
        emit RunCreated(run, msg.sender, config, name, genesis_);
    }

    /// @notice Says where version V[., round] of the run can be fetched as a checkpoint.
    function publishCheckpoint(bytes32 run, uint32 round, bytes32 weights, string calldata uri) external {
        Run storage r = _run(run);
        if (msg.sender != r.creator && !r.members[msg.sender].holds) revert Runs.NotHolding(msg.sender);
        if (round > r.openRound) revert UnknownVersion(round);
        emit CheckpointPublished(run, round, msg.sender, weights, uri);
    }

    // --------------------------------------------------------------------------------------------------- slots

    /// @notice Gives the sender a slot: in the lowest replica with a free seat of `stage`, or, for ANY_STAGE, the
    /// lowest free stage of the lowest incomplete replica.
    function joinRun(bytes32 run, uint16 stage) external {
        Run storage r = _run(run);
        if (!registry.isRegistered(msg.sender)) revert NotRegistered(msg.sender);
        if (stage != ANY_STAGE && stage >= r.config.stages) revert UnknownStage(stage);
        Member storage member = r.members[msg.sender];
        if (member.holds) revert AlreadyHolding(msg.sender, member.replica, member.stage);

        uint16 replica;
        if (stage == ANY_STAGE) (replica, stage) = r.anyFreeSeat();
        else replica = r.freeSeat(stage);
        r.take(member, msg.sender, replica, stage);
        member.joinedRound = r.nextRound(stage);
        emit Joined(run, msg.sender, replica, stage);
        _openFirst(run, r);
    }

    /// @notice Moves the sender from an incomplete replica to its stage's free seat in the lowest lower replica.
    function moveDown(bytes32 run) external {
        Run storage r = _run(run);
        Member storage member = r.holder(msg.sender);
        (uint16 from, uint16 stage) = (member.replica, member.stage);
        if (r.holderCount[from] == r.config.stages) revert ReplicaComplete(from);
        uint16 to = r.lowerSeat(from, stage);
        bool accused = member.accused;
        r.release(member);
        r.take(member, msg.sender, to, stage);
        member.accused = accused;
        emit Moved(run, msg.sender, from, to, stage);
        _openFirst(run, r);
    }

    /// @notice Gives the sender's slot up.
    function leaveRun(bytes32 run) external {
        Run storage r = _run(run);
        Member storage member = r.holder(msg.sender);
        r.release(member);
        emit Left(run, msg.sender, member.replica, member.stage);
    }

    /// @notice Asks a holder whether it is still there: once the open round has timed out, or once the holder was not
    /// active in three sealed rounds of its stage. A holder is asked once per round, and again only after a further
    /// round timeout: one that answers and then dies must not block a quorum for ever.
    function accuse(bytes32 run, address account) external {
        Run storage r = _run(run);
        r.holder(msg.sender);
        Member storage member = r.holder(account);
        r.requireOpen();
        if (member.accused) revert AccusationPending(account);
        uint32 round = r.openRound;
        uint256 timeout = r.config.roundTimeout;
        if (member.accusedRound == round + 1 && block.timestamp <= member.accusedAt + timeout) {
            revert AlreadyAccused(account, round);
        }
        if (!r.isSilent(member) && block.timestamp <= r.openedAt + timeout) revert TooEarlyToAccuse(account);

        member.accused = true;
        member.accusedRound = round + 1;
        member.accusedAt = uint48(block.timestamp);
        member.accusedBlock = uint48(block.number);
        emit Accused(run, account, member.replica, member.stage, round, msg.sender);
    }

    /// @notice The accused sender is still there.
    function answer(bytes32 run) external {
        Member storage member = _run(run).holder(msg.sender);
        if (!member.accused) revert NotAccused(msg.sender);
        member.accused = false;
        emit Answered(run, msg.sender);
    }

    /// @notice Frees the slot of an accused holder that did not answer in time. Anyone may call this.
    function evict(bytes32 run, address account) external {
        Run storage r = _run(run);
        Member storage member = r.holder(account);
        if (!member.accused) revert NotAccused(account);
        uint256 fromTime = uint256(member.accusedAt) + r.config.evictionTime;
        uint256 fromBlock = member.accusedBlock + ANSWER_BLOCKS;
        if (block.timestamp < fromTime || block.number < fromBlock) revert TooEarlyToEvict(fromTime, fromBlock);
        r.release(member);
        emit Evicted(run, account, member.replica, member.stage);
    }

    // --------------------------------------------------------------------------------------------------- seals

    /// @notice Closes (round, stage). Anyone may send it; the first valid seal wins.
    /// @param contributions the counted records, accounts strictly ascending
    /// @param signatures the 65-byte signatures of the seal's EIP-712 digest, signers strictly ascending
    function seal(Seal calldata s, bytes calldata contributions, bytes calldata signatures) external {
        Run storage r = _run(s.run);
        _checkPlace(r, s);
        address[] memory accounts = _checkContributions(r, s, contributions);
        if (accounts.length == 0) _checkEmpty(r, s);
        bytes32 digest = _hashTypedDataV4(Seals.hash(s));
        _checkQuorum(r, s, digest, signatures);

        for (uint256 i = 0; i < accounts.length; ++i) {
            r.members[accounts[i]].lastActive = s.round + 1;
        }
        r.digests[s.round][s.stage] = digest;
        r.heads[s.stage] = Head(s.nextWeights, s.nextMomentum);
        bool all = r.noteSealed(s.stage);
        emit Sealed(s.run, s.round, s.stage, digest, s, contributions, signatures);
        if (all) {
            r.sealedStages = 0;
            _open(s.run, r, s.round + 1);
        }
    }

    function _checkPlace(Run storage r, Seal calldata s) private view {
        if (s.stage >= r.config.stages) revert UnknownStage(s.stage);
        r.requireOpen();
        uint32 next = r.nextRound(s.stage);
        if (s.round != next) revert WrongRound(s.round, next);
        if (s.round != r.openRound) revert StageAhead(s.stage, r.openRound);
        Head storage head = r.heads[s.stage];
        if (s.previousWeights != head.weights) revert WrongPreviousWeights(s.previousWeights, head.weights);
        if (s.previousMomentum != head.momentum) revert WrongPreviousMomentum(s.previousMomentum, head.momentum);
    }

    /// @dev Recomputes from the records whatever the seal says of them. The work is bounded by the number of replicas:
    /// accounts ascend strictly and each must hold its own slot of the stage.
    function _checkContributions(Run storage r, Seal calldata s, bytes calldata records)
        private
        view
        returns (address[] memory accounts)
    {
        uint256 count = records.count();
        if (s.count != count) revert WrongCount(s.count, count);
        if (s.multipliers.length != 2 * count) revert WrongMultipliersLength(s.multipliers.length, 2 * count);
        bytes32 hash = keccak256(records);
        if (s.contributionsHash != hash) revert WrongContributionsHash(s.contributionsHash, hash);

        accounts = new address[](count);
        bytes32[] memory leaves = new bytes32[](count);
        uint256 tokens = 0;
        uint256 loss = 0;
        for (uint256 i = 0; i < count; ++i) {
            Contribution memory c;
            (c, leaves[i]) = records.read(i);
            if (i > 0 && c.account <= accounts[i - 1]) revert AccountsNotAscending(c.account);
            accounts[i] = c.account;
            _checkContribution(r, s, c);
            tokens += c.tokens;
            loss += uint256(c.loss) * c.tokens;
        }
        bytes32 root = Contributions.merkleRoot(leaves);
        if (s.contributionsRoot != root) revert WrongContributionsRoot(s.contributionsRoot, root);
        if (s.totalTokens != tokens) revert WrongTotalTokens(s.totalTokens, tokens);
        uint256 meanLoss = tokens == 0 ? 0 : loss / tokens;
        if (s.meanLoss != meanLoss) revert WrongMeanLoss(s.meanLoss, meanLoss);
    }

    function _checkContribution(Run storage r, Seal calldata s, Contribution memory c) private view {
        if (c.run != s.run || c.round != s.round || c.stage != s.stage) revert ContributionOfAnotherRound(c.account);
        Member storage member = r.members[c.account];
        if (!member.holds || member.stage != c.stage || member.replica != c.replica) {
            revert AccountWithoutSlot(c.account, c.replica, c.stage);
        }
        uint256 tokens = uint256(c.innerSteps) * r.config.tokensPerStep;
        if (c.tokens != tokens || tokens == 0) revert WrongTokens(c.account, c.tokens, tokens);
    }

    function _checkEmpty(Run storage r, Seal calldata s) private view {
        if (s.nextWeights != s.previousWeights || s.nextMomentum != s.previousMomentum) revert EmptySealChangesState();
        uint256 fromTime = uint256(r.openedAt) + r.config.roundTimeout;
        if (block.timestamp < fromTime) revert EmptySealTooEarly(fromTime);
    }

    /// @dev Every signer must hold a slot of the stage; only active ones count, but all are active from now on.
    function _checkQuorum(Run storage r, Seal calldata s, bytes32 digest, bytes calldata signatures) private {
        if (signatures.length % SIGNATURE_BYTES != 0) revert SignaturesLength(signatures.length);
        (, uint256 needed, bool noneActive) = r.quorum(s.stage);
        uint256 counted = 0;
        address previous = address(0);
        for (uint256 start = 0; start < signatures.length; start += SIGNATURE_BYTES) {
            address signer = ECDSA.recoverCalldata(digest, signatures[start:start + SIGNATURE_BYTES]);
            if (signer <= previous) revert SignersNotAscending(signer);
            previous = signer;
            Member storage member = r.members[signer];
            if (!member.holds || member.stage != s.stage) revert SignerWithoutSlot(signer);
            if (noneActive || r.isActive(member)) ++counted;
            member.lastActive = s.round + 1;
        }
        if (counted < needed) revert QuorumMissing(counted, needed);
    }

    // --------------------------------------------------------------------------------------------------- views

    function runConfig(bytes32 run) external view returns (RunConfig memory) {
        return _run(run).config;
    }

    function genesis(bytes32 run, uint16 stage) external view returns (bytes32) {
        return _run(run).genesis[stage];
    }

    /// @notice The hashes of the stage's newest weights and outer momentum.
    function heads(bytes32 run, uint16 stage) external view returns (bytes32 weights, bytes32 momentum) {
        Head storage head = _run(run).heads[stage];
        return (head.weights, head.momentum);
    }

    /// @notice The slot's holder; zero where the seat is free.
    function holderOf(bytes32 run, uint16 replica, uint16 stage) external view returns (address) {
        return _run(run).holders[replica][stage];
    }

    function slotOf(bytes32 run, address account) external view returns (bool holds, uint16 replica, uint16 stage) {
        Member storage member = _run(run).members[account];
        return member.holds ? (true, member.replica, member.stage) : (false, 0, 0);
    }

    /// @notice The stage's lowest unsealed round; the run's number of rounds once all are sealed.
    function nextRound(bytes32 run, uint16 stage) external view returns (uint32) {
        return _run(run).nextRound(stage);
    }

    /// @notice The open round and its opening time; not open before enough replicas are complete and after the last.
    function openRound(bytes32 run) external view returns (bool open, uint32 round, uint64 openedAt) {
        Run storage r = _run(run);
        return (r.openedAt != 0 && r.openRound < r.config.rounds, r.openRound, r.openedAt);
    }

    /// @notice The EIP-712 digest of the seal of (round, stage); zero where it is not sealed.
    function sealDigest(bytes32 run, uint32 round, uint16 stage) external view returns (bytes32) {
        return _run(run).digests[round][stage];
    }

    /// @notice Whether the account's signature counts for its stage: it is a holder counted in, or signing, one of the
    /// stage's last three sealed rounds, or no holder of the stage is.
    function isActive(bytes32 run, address account) external view returns (bool) {
        Run storage r = _run(run);
        Member storage member = r.members[account];
        if (!member.holds) return false;
        if (r.isActive(member)) return true;
        (,, bool noneActive) = r.quorum(member.stage);
        return noneActive;
    }

    /// @notice How many holders' signatures count for the stage's next seal, and how many of them it needs.
    function quorumOf(bytes32 run, uint16 stage) external view returns (uint256 active, uint256 needed) {
        (active, needed,) = _run(run).quorum(stage);
    }

    // ------------------------------------------------------------------------------------------------- helpers

    function _run(bytes32 run) private view returns (Run storage r) {
        r = _runs[run];
        if (r.creator == address(0)) revert UnknownRun(run);
    }

    /// @dev Opens round 0 once enough replicas are complete; it stays open, whoever leaves.
    function _openFirst(bytes32 run, Run storage r) private {
        if (r.openedAt == 0 && r.completeReplicas >= r.config.minReplicas) _open(run, r, 0);
    }

    /// @dev Opens `round`; after the last one there is none to open.
    function _open(bytes32 run, Run storage r, uint32 round) private {
        r.openRound = round;
        r.openedAt = uint64(block.timestamp);
        if (round < r.config.rounds) emit RoundOpened(run, round, uint64(block.timestamp));
    }
}
