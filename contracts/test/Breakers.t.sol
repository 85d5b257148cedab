// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Member, RunConfig} from "../src/Runs.sol";
import {Seal} from "../src/Seals.sol";
import {Fixture, Work} from "./Fixture.sol";
import {vm} from "./Vm.sol";

/// @notice Members that take a slot, answer and never train break their replica: nobody in it is counted. Runs of three
/// stages and three replicas in which the honest do what nodes do: work, seal, deal, ask and evict.
contract BreakersTest is Fixture {
    uint256 internal constant SIZE = 3;
    uint256 internal constant SEEDS = 20;

    mapping(address => bool) internal breaks;
    mapping(bytes32 run => mapping(uint256 stage => mapping(uint256 round => uint256 replicas))) internal counted;
    uint256[] internal first; // of each seed: the rounds until work was counted
    uint256[] internal gone; // and until every breaker had lost its slot
    uint256 internal lost; // slots of the honest, in all seeds

    event Measured(string what, uint256 ninetyNinePercent, uint256 most);

    /// @dev One breaker in every replica, in different stages: no replica works. Deals bring breakers together, so that
    /// others work, and then the breakers lose their slots. Of the honest few lose theirs: whom 24 seals in a row leave
    /// among breakers, one or two in a hundred; it comes back.
    function test_oneBreakerInEveryReplica() public {
        enrol(SIZE * SIZE);
        breaks[who[0]] = breaks[who[4]] = breaks[who[8]] = true; // (replica, stage) (0, 0), (1, 1), (2, 2)
        for (uint256 seed = 0; seed < SEEDS; ++seed) simulate(seed);
        report("rounds without work", first, 36);
        report("rounds until the last breaker is gone", gone, 72);
        emit Measured("slots that the honest lost", 0, lost);
        vm.assertLt(lost, 6, "lost"); // of 120
    }

    /// @dev All slots of a stage are theirs, so its weight stays the founder's, who dismisses them after eight rounds:
    /// outsiders take the slots, and the honest of the other stages work on.
    function test_aStageFullOfBreakers() public {
        enrol(SIZE * SIZE + SIZE);
        breaks[who[1]] = breaks[who[4]] = breaks[who[7]] = true;
        RunConfig memory config = configOf(uint16(SIZE), 1, uint16(SIZE));
        config.rounds = 1000;
        bytes32 run = create(config);
        for (uint256 i = 0; i < SIZE * SIZE; ++i) join(run, who[i], uint16(i % SIZE));
        (,, uint64 start) = ledger.openRound(run);
        for (uint256 turn = 1; !this.playRound(run); ++turn) {
            if (turn == 8) dismissBreakers(run);
            for (uint256 i = SIZE * SIZE; i < who.length; ++i) {
                if (ledger.memberOf(run, who[i]).holds) continue;
                vm.prank(who[i]);
                attempt(abi.encodeCall(ledger.joinRun, (run, 1)));
            }
            vm.assertLt(turn, 12, "turns");
        }
        (,, uint64 end) = ledger.openRound(run);
        emit Measured("timeouts until outsiders work", 0, (end - start) / ROUND_TIMEOUT);
        vm.assertLt((end - start) / ROUND_TIMEOUT, 16, "timeouts");
    }

    // --------------------------------------------------------------------------------------------------- helpers

    function simulate(uint256 seed) internal {
        RunConfig memory config = configOf(uint16(SIZE), 1, uint16(SIZE));
        config.manifest = keccak256(abi.encode(seed)); // the seals, and so the draws, follow from it
        config.rounds = 1000;
        bytes32 run = create(config);
        for (uint256 i = 0; i < who.length; ++i) join(run, who[i], uint16(i % SIZE));
        uint256 worked = 0;
        uint256 round = 0;
        for (uint256 left = SIZE; left != 0; ++round) {
            if (this.playRound(run) && worked == 0) worked = round + 1;
            left = 0;
            for (uint256 i = 0; i < who.length; ++i) {
                bool holds = ledger.memberOf(run, who[i]).holds;
                if (breaks[who[i]]) left += holds ? 1 : 0;
                else if (!holds) comeBack(run, who[i]);
            }
            vm.assertLt(round, 300, "rounds");
        }
        first.push(worked - 1);
        gone.push(round);
    }

    /// @dev An honest member has lost its slot.
    function comeBack(bytes32 run, address account) internal {
        ++lost;
        join(run, account, ledger.memberOf(run, account).stage);
    }

    function dismissBreakers(bytes32 run) internal {
        for (uint256 i = 0; i < who.length; ++i) {
            if (!breaks[who[i]]) continue;
            vm.prank(founder);
            ledger.dismiss(run, who[i], address(0));
        }
        pass(1);
    }

    /// @dev The replicas without a breaker work; then all stages seal, with the votes of the honest. Returns whether
    /// any work was counted.
    function playRound(bytes32 run) external returns (bool worked) {
        clean(run);
        (, uint32 round,) = ledger.openRound(run);
        for (uint16 stage = 0; stage < SIZE; ++stage) {
            if (ledger.nextRound(run, stage) != round) continue;
            Work[] memory works = worksOfRound(run, stage);
            Seal memory s = signedBy(sealOf(run, stage, works), works, founded(honestOf(run, stage)));
            for (uint256 i = 0; i < works.length; ++i) {
                worked = true;
                counted[run][stage][s.round] |= 1 << works[i].replica;
            }
            (,, uint64 openedAt) = ledger.openRound(run);
            uint256 wait = works.length > 1 ? MIN_ROUND_TIME : ROUND_TIMEOUT;
            if (vm.getBlockTimestamp() < openedAt + wait) vm.warp(openedAt + wait);
            bool ok = attempt(abi.encodeCall(ledger.seal, (s)));
            for (uint256 k = 0; !ok; ++k) {
                vm.assertLt(k, 60, "the stage cannot be sealed");
                pass(ROUND_TIMEOUT);
                clean(run);
                if (k == 1) break; // outsiders may have to come first
                s = signedBy(sealOf(run, stage, works), works, founded(honestOf(run, stage)));
                ok = attempt(abi.encodeCall(ledger.seal, (s)));
            }
        }
    }

    /// @dev Deals, asks and evicts whatever can be; breakers answer.
    function clean(bytes32 run) internal {
        for (uint16 replica = 0; replica < SIZE; ++replica) {
            attempt(abi.encodeCall(ledger.deal, (run, replica)));
        }
        for (uint256 i = 0; i < who.length; ++i) {
            vm.prank(address(0xbad));
            bool asked = attempt(abi.encodeCall(ledger.accuse, (run, who[i])));
            vm.prank(who[i]);
            attempt(abi.encodeCall(ledger.answer, (run)));
            if (!asked) attempt(abi.encodeCall(ledger.evict, (run, who[i])));
        }
        pass(1);
    }

    /// @dev The works of the stage's next round: of those replicas whose records no breaker would have to make.
    function worksOfRound(bytes32 run, uint16 stage) internal view returns (Work[] memory works) {
        uint32 round = ledger.nextRound(run, stage);
        uint256 able = 7;
        for (uint16 each = 0; each < SIZE; ++each) {
            if (ledger.nextRound(run, each) > round) able &= counted[run][each][round];
            else able &= ableOf(rosterOf(run, each));
        }
        address[SIZE] memory makers = rosterOf(run, stage);
        Work[] memory found = new Work[](SIZE);
        uint256 count = 0;
        for (uint16 replica = 0; replica < SIZE; ++replica) {
            if ((able >> replica) & 1 == 0) continue;
            found[count] = workOf(run, makers[replica]);
            found[count++].replica = replica;
        }
        works = new Work[](count);
        for (uint256 i = 0; i < count; ++i) works[i] = found[i];
    }

    function ableOf(address[SIZE] memory makers) internal view returns (uint256 able) {
        for (uint256 i = 0; i < SIZE; ++i) if (makers[i] != address(0) && !breaks[makers[i]]) able |= 1 << i;
    }

    /// @dev Who makes the records of the stage's next round.
    function rosterOf(bytes32 run, uint16 stage) internal view returns (address[SIZE] memory makers) {
        uint32 changed = ledger.nextRound(run, stage) + 1;
        for (uint256 i = 0; i < who.length; ++i) {
            Member memory m = ledger.memberOf(run, who[i]);
            if (m.stage != stage || !wasIn(run, who[i], stage)) continue;
            if (m.changedRound == changed && m.formerReplica < SIZE) makers[m.formerReplica] = who[i];
            if (m.changedRound != changed && m.holds && makers[m.replica] == address(0)) makers[m.replica] = who[i];
        }
    }

    function honestOf(bytes32 run, uint16 stage) internal view returns (address[] memory list) {
        uint256 count = 0;
        for (uint256 i = 0; i < who.length; ++i) if (isHonest(run, who[i], stage)) ++count;
        list = new address[](count);
        for (uint256 i = 0; i < who.length; ++i) if (isHonest(run, who[i], stage)) list[--count] = who[i];
    }

    function isHonest(bytes32 run, address account, uint16 stage) internal view returns (bool) {
        Member memory m = ledger.memberOf(run, account);
        return !breaks[account] && wasIn(run, account, stage) && m.stage == stage;
    }

    function wasIn(bytes32 run, address account, uint16 stage) internal view returns (bool) {
        return (ledger.standingOf(run, account).stages >> stage) & 1 == 1;
    }

    function attempt(bytes memory call) internal returns (bool ok) {
        (ok,) = address(ledger).call(call);
    }

    function report(string memory what, uint256[] storage values, uint256 limit) internal {
        for (uint256 i = 1; i < values.length; ++i) {
            for (uint256 j = i; j > 0 && values[j] < values[j - 1]; --j) {
                (values[j], values[j - 1]) = (values[j - 1], values[j]);
            }
        }
        emit Measured(what, values[values.length * 99 / 100 - 1], values[values.length - 1]);
        vm.assertLt(values[values.length - 1], limit, what);
    }
}
