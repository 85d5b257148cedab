// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @notice The part of a run's manifest that the ledger enforces. Times are in seconds.
struct RunConfig {
    bytes32 manifest; // sha256
    uint32 rounds;
    uint16 stages;
    uint16 minReplicas;
    uint16 maxReplicas;
    uint16 quorumNumerator;
    uint16 quorumDenominator;
    uint32 roundTimeout;
    uint32 evictionTime;
    uint64 tokensPerStep;
}

struct Head {
    bytes32 weights;
    bytes32 momentum;
}

struct Member {
    bool holds;
    bool accused; // an accusation waits for an answer
    uint16 replica;
    uint16 stage; // the last one, where `holds` is false
    uint32 joinedRound; // the stage's next round when the account joined
    uint32 lastActive; // 1 + the last round of `stage` that counted the account or that it signed; 0: none
    uint32 accusedRound; // 1 + the round of the last accusation; 0: none
    uint48 accusedAt;
    uint48 accusedBlock;
}

struct Run {
    RunConfig config;
    address creator; // zero: there is no such run
    uint64 openedAt; // of the open round; 0 until round 0 opens
    uint32 openRound; // equals config.rounds once the run is finished
    uint64 sealedStages; // a bit for each stage that has sealed the open round
    uint16 usedReplicas; // 1 + the highest replica that ever had a holder
    uint16 completeReplicas;
    mapping(uint256 stage => bytes32) genesis;
    mapping(uint256 stage => Head) heads;
    mapping(uint256 replica => mapping(uint256 stage => address)) holders;
    mapping(uint256 replica => uint256) holderCount;
    mapping(address account => Member) members;
    mapping(uint256 round => mapping(uint256 stage => bytes32)) digests;
}

/// @title The state of one run: its seats, its rounds and who counts for a quorum
library Runs {
    uint256 internal constant MAX_STAGES = 64; // the width of Run.sealedStages
    uint256 internal constant MAX_REPLICAS = 64; // bounds the gas of a seal
    uint256 internal constant ACTIVE_ROUNDS = 3;
    uint256 internal constant MAX_NAME_BYTES = 64;
    /// @dev A bit for each ASCII letter and digit, and for those and `-`, `.`, `_`.
    uint256 private constant ALPHANUMERIC = (0x3ff << 48) | (0x3ffffff << 65) | (0x3ffffff << 97);
    uint256 private constant NAME_CHARACTERS = ALPHANUMERIC | (1 << 45) | (1 << 46) | (1 << 95);

    error InvalidConfig(string field);
    error NotHolding(address account);
    error NoFreeSeat(uint16 stage);
    error NoLowerSeat(uint16 replica, uint16 stage);
    error RoundNotOpen();
    error RunFinished();

    function check(RunConfig calldata config) internal pure {
        if (config.rounds == 0) revert InvalidConfig("rounds");
        if (config.stages == 0 || config.stages > MAX_STAGES) revert InvalidConfig("stages");
        if (config.maxReplicas == 0 || config.maxReplicas > MAX_REPLICAS) revert InvalidConfig("maxReplicas");
        if (config.minReplicas == 0 || config.minReplicas > config.maxReplicas) revert InvalidConfig("minReplicas");
        if (config.quorumNumerator == 0 || config.quorumNumerator > config.quorumDenominator) {
            revert InvalidConfig("quorum");
        }
        if (config.roundTimeout == 0) revert InvalidConfig("roundTimeout");
        if (config.evictionTime == 0) revert InvalidConfig("evictionTime");
        if (config.tokensPerStep == 0) revert InvalidConfig("tokensPerStep");
    }

    /// @notice A name is 1 to 64 ASCII letters, digits, `-`, `.` and `_`, the first a letter or digit: what can be shown
    /// anywhere as it is.
    function checkName(bytes calldata name) internal pure {
        if (name.length == 0 || name.length > MAX_NAME_BYTES) revert InvalidConfig("name");
        uint256 allowed = ALPHANUMERIC;
        for (uint256 i = 0; i < name.length; ++i) {
            if ((allowed >> uint8(name[i])) & 1 == 0) revert InvalidConfig("name");
            allowed = NAME_CHARACTERS;
        }
    }

    // ------------------------------------------------------------------------------------------------- seats

    /// @notice The account's membership, which must hold a slot now.
    function holder(Run storage r, address account) internal view returns (Member storage member) {
        member = r.members[account];
        if (!member.holds) revert NotHolding(account);
    }

    /// @notice The lowest free seat: of the lowest replica where `stage` is free.
    function freeSeat(Run storage r, uint16 stage) internal view returns (uint16 replica) {
        for (; replica < r.config.maxReplicas; ++replica) {
            if (r.holders[replica][stage] == address(0)) return replica;
        }
        revert NoFreeSeat(stage);
    }

    /// @notice The lowest free stage of the lowest incomplete replica.
    function anyFreeSeat(Run storage r) internal view returns (uint16 replica, uint16 stage) {
        for (; replica < r.config.maxReplicas; ++replica) {
            if (r.holderCount[replica] == r.config.stages) continue;
            while (r.holders[replica][stage] != address(0)) ++stage;
            return (replica, stage);
        }
        revert NoFreeSeat(type(uint16).max);
    }

    /// @notice The lowest replica below `replica` where `stage` is free.
    function lowerSeat(Run storage r, uint16 replica, uint16 stage) internal view returns (uint16 lower) {
        for (; lower < replica; ++lower) {
            if (r.holders[lower][stage] == address(0)) return lower;
        }
        revert NoLowerSeat(replica, stage);
    }

    function take(Run storage r, Member storage member, address account, uint16 replica, uint16 stage) internal {
        // A member that changes stage starts anew there; one that comes back goes on as it was.
        if (member.stage != stage) member.lastActive = 0;
        member.holds = true;
        member.replica = replica;
        member.stage = stage;
        r.holders[replica][stage] = account;
        if (replica >= r.usedReplicas) r.usedReplicas = replica + 1;
        if (++r.holderCount[replica] == r.config.stages) ++r.completeReplicas;
    }

    function release(Run storage r, Member storage member) internal {
        member.holds = false;
        member.accused = false;
        delete r.holders[member.replica][member.stage];
        if (r.holderCount[member.replica]-- == r.config.stages) --r.completeReplicas;
    }

    // ------------------------------------------------------------------------------------------------ rounds

    function requireOpen(Run storage r) internal view {
        if (r.openedAt == 0) revert RoundNotOpen();
        if (r.openRound == r.config.rounds) revert RunFinished();
    }

    /// @notice The stage's lowest unsealed round. Stages seal a round in any order, but never run ahead by another.
    function nextRound(Run storage r, uint256 stage) internal view returns (uint32) {
        return r.openRound + uint32((r.sealedStages >> stage) & 1);
    }

    /// @notice Notes that the stage has sealed the open round, and says whether it was the last stage to do so.
    function noteSealed(Run storage r, uint256 stage) internal returns (bool all) {
        r.sealedStages |= uint64(1) << uint64(stage);
        all = r.sealedStages == type(uint64).max >> (64 - r.config.stages);
    }

    /// @notice Whether one of the stage's last three sealed rounds counted the member or was signed by it.
    function isActive(Run storage r, Member storage member) internal view returns (bool) {
        return member.lastActive != 0 && member.lastActive + ACTIVE_ROUNDS > nextRound(r, member.stage);
    }

    /// @notice Whether the member had three rounds of its stage to be active in, and was in none.
    function isSilent(Run storage r, Member storage member) internal view returns (bool) {
        uint256 since = member.lastActive > member.joinedRound ? member.lastActive : member.joinedRound;
        return nextRound(r, member.stage) >= since + ACTIVE_ROUNDS;
    }

    /// @notice How many holders of the stage count (the active ones, or all where none is active) and how many of them
    /// must sign: the run's fraction, rounded up, at least one.
    function quorum(Run storage r, uint16 stage)
        internal
        view
        returns (uint256 members, uint256 needed, bool noneActive)
    {
        uint256 holders = 0;
        for (uint256 replica = 0; replica < r.usedReplicas; ++replica) {
            address account = r.holders[replica][stage];
            if (account == address(0)) continue;
            ++holders;
            if (isActive(r, r.members[account])) ++members;
        }
        noneActive = members == 0;
        if (noneActive) members = holders;
        uint256 denominator = r.config.quorumDenominator;
        needed = (members * r.config.quorumNumerator + denominator - 1) / denominator;
        if (needed == 0) needed = 1;
    }
}
