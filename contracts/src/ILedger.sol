// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {RunConfig} from "./Runs.sol";
import {Outcome} from "./Seals.sol";

/// @title What the ledger says: its events, and why it refuses
interface ILedger {
    /// @notice `genesis` has the weights hash of V[s, 0] for each stage s.
    event RunCreated(
        bytes32 indexed run,
        address indexed creator,
        RunConfig config,
        string name,
        bytes32[] genesis,
        address[] founders
    );
    /// @notice Enough replicas are complete: round 0 is open from this time on, in Unix seconds.
    event RunOpened(bytes32 indexed run, uint64 openedAt);
    event Joined(bytes32 indexed run, address indexed account, uint16 replica, uint16 stage);
    /// @notice Until then the others of its site may place the account, which asks for `stage` (ANY_STAGE: whichever).
    event SiteEnlisted(bytes32 indexed run, address indexed account, address indexed site, uint16 stage, uint64 until);
    /// @notice All slots of the replica are the site's now, each stage's of one of these accounts. A Joined follows for
    /// each that did not hold its slot before.
    event SitePlaced(bytes32 indexed run, address indexed site, uint16 replica, address[] accounts);
    /// @notice The holder gave its slot back; its stage's next seal may still count it.
    event Left(bytes32 indexed run, address indexed account, uint16 replica, uint16 stage);
    /// @notice The holder took a lower free slot of its stage.
    event Moved(bytes32 indexed run, address indexed account, uint16 fromReplica, uint16 toReplica, uint16 stage);
    /// @notice The holders of two slots of a stage changed places.
    event Dealt(bytes32 indexed run, uint16 stage, uint16 replica, uint16 with);
    /// @notice `forfeit`: only being counted keeps the slot, an answer wins time.
    event Accused(bytes32 indexed run, address indexed account, address by, bool forfeit);
    event Answered(bytes32 indexed run, address indexed account);
    /// @notice `returnUntil` is the time until which nobody else can take the slot; 0: anyone can.
    event Evicted(bytes32 indexed run, address indexed account, uint16 replica, uint16 stage, uint64 returnUntil);
    /// @notice A founder freed the holder's slot. Until then nobody but the successor can take it; 0, for no successor:
    /// anyone can.
    event Dismissed(
        bytes32 indexed run,
        address indexed account,
        address by,
        uint16 replica,
        uint16 stage,
        address successor,
        uint64 until
    );
    /// @notice The account took the slot of another one, which stood still.
    event Reclaimed(bytes32 indexed run, address indexed account, address indexed from, uint16 replica, uint16 stage);
    /// @notice The account's contribution to (stage, round) was found false or withheld: it lost the slot that it held, if
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

    /// @notice A holder of the last stage says the sum of the losses (micronats) of a version on so many held-out tokens;
    /// nobody checked it. `statement` is the sha256 of what it signed of its part of the computation.
    event Evaluated(
        bytes32 indexed run, address indexed account, uint32 version, uint64 sum, uint32 count, bytes32 statement
    );

    error InvalidConfig(string field);
    error UnknownRun(bytes32 run);
    error RunExists(bytes32 run);
    error NotRegistered(address account);
    error NotInvited(address account);
    error NotFounder(address account);
    error NotHolding(address account);
    error NoFreeSlot(uint16 stage);
    error NoLowerSlot(uint16 replica, uint16 stage);
    error RoundNotOpen();
    error RunFinished();
    error UnknownStage(uint16 stage);
    error AlreadyHolding(address account, uint16 replica, uint16 stage);
    /// @notice The account may still be counted in its former stage; it can change stage after that stage's next seal.
    error SealPending(uint16 stage, uint32 round);
    error NotEnlisted(address account);
    error WrongSlots(uint16 replica, uint256 accounts);
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
    error NothingEvaluated();
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
    /// @notice In weight, see Weights.
    error QuorumMissing(uint256 votes, uint256 needed);
    /// @notice The stage's work has weight of its own: its founders free no such slot there.
    error NotVacant(uint16 stage);
    /// @notice The account has too little weight in the stage, or finds a free slot there, or a founder could dismiss it
    /// from one.
    error NothingToReclaim(address account, uint16 stage);
    /// @notice The stage works, or the holder was counted, or has an eighth of the sender's weight.
    error NotIdle(address account);
    error EpochNotOver(uint256 epoch);
}

/// @title Who may take a slot of an invited run of the ledger that asks
interface IInvitations {
    function admits(bytes32 run, address account) external view returns (bool);
}

/// @title What slots lock, in the name of the ledger that asks
interface IBonds {
    /// @notice Reverts where the account has not deposited so much.
    function lock(bytes32 run, address account, uint256 amount) external;
    function release(bytes32 run, address account) external;
}
