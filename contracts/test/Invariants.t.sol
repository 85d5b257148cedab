// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Activity, Member, RunConfig} from "../src/Runs.sol";
import {Seal} from "../src/Seals.sol";
import {Enlisted} from "../src/Sites.sol";
import {Weights} from "../src/Weights.sol";
import {Charge, Fixture, Work} from "./Fixture.sol";
import {vm} from "./Vm.sol";

/// @dev Everybody does anything to a run of two stages, in any order, from before its first seal on: works the whole
/// round, a part of it or not at all, signs or withholds, leaves and comes back, evicts, judges, waits. The first three
/// accounts are a coalition whose part of the weight is watched.
contract Handler is Fixture {
    uint16 internal constant STAGES = 2;
    uint16 internal constant REPLICAS = 3;
    uint256 internal constant ACCOUNTS = 9;
    uint256 internal constant COALITION = 3;
    uint256 internal constant SLACK = 64; // of weight: roundings

    bytes32 public run;
    mapping(uint256 stage => mapping(uint256 epoch => mapping(address => uint256))) internal earned;
    mapping(uint256 stage => mapping(uint256 epoch => uint256)) internal sealed_;
    uint256 internal convicts; // so many were convicted: they would be all
    string public broken; // the first invariant that a call found broken

    constructor() {
        enrol(ACCOUNTS);
        RunConfig memory config = configOf(STAGES, 1, REPLICAS);
        config.rounds = 10_000;
        run = create(config);
        for (uint256 i = 0; i < STAGES * REPLICAS; ++i) join(run, who[i], uint16(i % STAGES));
    }

    /// @dev Whatever is done so gives the coalition no more of a stage's weight than it had.
    modifier watched() {
        uint256[2] memory before = [partOf(0), partOf(1)];
        _;
        for (uint16 stage = 0; stage < STAGES; ++stage) {
            if (partOf(stage) > before[stage] + 1e15) fail("the coalition's part grew without work or time");
        }
    }

    // ---------------------------------------------------------------------------------------- what anybody does

    function takeSlot(uint256 a, uint16 stage) external {
        // Who comes back has what it left: the coalition's part may be again what it was before.
        send(who[a % ACCOUNTS], abi.encodeCall(ledger.joinRun, (run, stage % STAGES)));
    }

    /// @dev Of two sites; any number of accounts of each.
    function enlistOne(uint256 a, uint256 site, uint40 time) external watched {
        address account = who[a % ACCOUNTS];
        uint40 until = uint40(vm.getBlockTimestamp() + time % (2 * ROUND_TIMEOUT));
        send(account, abi.encodeCall(ledger.enlist, (run, ANY, until, named(run, account, 0x517e + site % 2))));
    }

    /// @dev Whoever is placed so was named by the sender's site, agreed to it, and sits where the sender said.
    function placeSite(uint256 a, uint16 replica, uint256 first, uint256 second) external {
        replica %= REPLICAS;
        address[] memory accounts = some(who[first % ACCOUNTS], who[second % ACCOUNTS]);
        for (uint16 stage = 0; stage < STAGES; ++stage) {
            address holder = ledger.holderOf(run, replica, stage);
            if (holder != address(0) && a % 4 != 0) accounts[stage] = holder;
            if (a % 4 == 3) this.enlistOne(indexOf(accounts[stage]), first, 1);
        }
        bool[2] memory agreed;
        address site = ledger.enlistedOf(run, accounts[0]).site;
        for (uint16 stage = 0; stage < STAGES; ++stage) {
            Enlisted memory e = ledger.enlistedOf(run, accounts[stage]);
            bool held = ledger.holderOf(run, replica, stage) == accounts[stage];
            agreed[stage] = site != address(0) && e.site == site && (held || e.until >= vm.getBlockTimestamp());
        }
        vm.prank(accounts[0]);
        try ledger.joinSite(run, replica, accounts) {
            for (uint16 stage = 0; stage < STAGES; ++stage) {
                if (!agreed[stage]) fail("placed without being asked");
                requireSlot(run, accounts[stage], replica, stage);
            }
        } catch {}
    }

    function leaveSlot(uint256 a) external watched {
        send(who[a % ACCOUNTS], abi.encodeCall(ledger.leaveRun, (run)));
    }

    function move(uint256 a) external watched {
        send(who[a % ACCOUNTS], abi.encodeCall(ledger.moveDown, (run)));
    }

    function accuse(uint256 a, uint256 b) external watched {
        send(who[a % ACCOUNTS], abi.encodeCall(ledger.accuse, (run, who[b % ACCOUNTS])));
    }

    function answer(uint256 a) external watched {
        send(who[a % ACCOUNTS], abi.encodeCall(ledger.answer, (run)));
    }

    function evict(uint256 a) external watched {
        send(address(0xbad), abi.encodeCall(ledger.evict, (run, who[a % ACCOUNTS])));
    }

    function dismiss(uint256 a, uint256 b) external watched {
        address successor = b % 2 == 0 ? address(0) : who[b % ACCOUNTS];
        send(founder, abi.encodeCall(ledger.dismiss, (run, who[a % ACCOUNTS], successor)));
    }

    function deal(uint16 replica) external watched {
        send(address(0xbad), abi.encodeCall(ledger.deal, (run, replica % REPLICAS)));
    }

    function wait(uint256 time) external {
        pass(time % 3 == 0 ? time % (8 * ROUND_TIMEOUT) : time % ROUND_TIMEOUT);
    }

    /// @dev Anybody says of anybody what it likes: nobody is convicted by less than a third of the stage's weight, and
    /// nobody without three fifths of it.
    function judge(uint256 a, uint16 stage, uint256 signers, bool founds) external {
        stage %= STAGES;
        Charge memory c = charge(run, stage, ledger.nextRound(run, stage), who[a % ACCOUNTS]);
        signers |= signers >> 16;
        (uint256 votes, uint256 all) = (0, verdictsOf(stage));
        address[] memory judges = founds ? some(founder) : none();
        uint256 vacuum = all < Weights.ENOUGH ? Weights.ENOUGH - all : 0;
        for (uint256 i = 0; i < ACCOUNTS; ++i) {
            if ((signers >> i) & 1 == 0) continue;
            judges = joined(judges, some(who[i]));
            Member memory m = ledger.memberOf(run, who[i]);
            if (who[i] == c.account || m.stage != stage) continue;
            // What the absent have in verdicts is at most what they left with.
            votes += m.holds ? ledger.weightOf(run, who[i]) : m.weight;
        }
        if (founds) votes += vacuum;
        if (convicts >= 3) return;
        (bool done,) = address(ledger).call(convictCall(c, found(c, 2, ascending(judges))));
        if (!done) return;
        ++convicts;
        if (5 * votes + SLACK < 3 * (all + vacuum)) fail("convicted by too few");
    }

    /// @dev All of the stage work that want to, some of them a sixteenth of the round, and these sign.
    function work(uint16 stage, uint256 makers, uint256 signers, bool founds) external {
        stage %= STAGES;
        pass(MIN_ROUND_TIME);
        Work[] memory works = make(stage, makers);
        signers |= signers >> 16;
        address[] memory list = founds ? some(founder) : none();
        uint256 votes = founds ? vacuumOf(run, stage) : 0;
        for (uint256 i = 0; i < ACCOUNTS; ++i) {
            if (!wasIn(who[i], stage) || (signers >> i) & 1 == 0) continue;
            list = joined(list, some(who[i]));
            if (ledger.memberOf(run, who[i]).stage == stage) votes += ledger.weightOf(run, who[i]);
        }
        uint256 total = totalOf(run, stage);
        (,, uint64 openedAt) = ledger.openRound(run);
        bool late = vm.getBlockTimestamp() > openedAt + ROUND_TIMEOUT;
        Seal memory s = signedBy(sealOf(run, stage, works), works, list);
        uint256 before = partOf(stage);
        bool theirs = false;
        for (uint256 i = 0; i < works.length; ++i) if (isOfCoalition(works[i].account)) theirs = true;
        bool[] memory holds = new bool[](works.length);
        for (uint256 i = 0; i < works.length; ++i) holds[i] = holdsIn(works[i].account, stage);
        (bool done,) = address(ledger).call(abi.encodeCall(ledger.seal, (s)));
        if (!done) return;
        if (3 * votes + SLACK < total) fail("less than a third sealed");
        if (!late && 3 * votes + SLACK < 2 * total) fail("less than two thirds sealed in time");
        if (!late && works.length == 0 && vm.getBlockTimestamp() < openedAt + ROUND_TIMEOUT) fail("an early empty seal");
        if (!theirs && partOf(stage) > before + 1e15) fail("the coalition's part grew by the others' work");
        note(stage, s.round / 16, works, holds);
    }

    // --------------------------------------------------------------------------------------------- what must hold

    /// @dev Slots, lanes, bitmaps and members say the same; an account has one slot and one lane.
    function checkSlots() external view {
        uint256 slots = 0;
        uint256[2] memory lanes;
        for (uint16 stage = 0; stage < STAGES; ++stage) {
            Activity memory activity = activityOf(run, stage);
            for (uint16 replica = 0; replica < REPLICAS; ++replica) {
                address account = ledger.holderOf(run, replica, stage);
                vm.assertEq((activity.held >> replica) & 1, account == address(0) ? 0 : 1, "held");
                if (account == address(0)) continue;
                ++slots;
                requireSlot(run, account, replica, stage);
                uint256 lane = 1 << ledger.memberOf(run, account).lane;
                vm.assertEq(lanes[stage] & lane, 0, "a lane of two");
                lanes[stage] |= lane;
            }
            vm.assertEq(activity.lanes, lanes[stage], "lanes");
        }
        uint256 holders = 0;
        for (uint256 i = 0; i < ACCOUNTS; ++i) {
            Member memory m = ledger.memberOf(run, who[i]);
            if (m.holds) ++holders;
            vm.assertFalse(ledger.standingOf(run, who[i]).convicted && (m.holds || ledger.weightOf(run, who[i]) != 0));
        }
        vm.assertEq(holders, slots, "holders");
    }

    /// @dev The weight of a stage is that of its members, present and absent, and no more than there is.
    function checkWeights() external view {
        for (uint16 stage = 0; stage < STAGES; ++stage) {
            (uint256 held, uint256 absent, uint256 inVerdicts, uint256 vacuum) = ledger.weightsOf(run, stage);
            uint256 here = 0;
            uint256 away = 0;
            for (uint256 i = 0; i < ACCOUNTS; ++i) {
                Member memory m = ledger.memberOf(run, who[i]);
                if (m.stage != stage) continue;
                if (m.holds) here += ledger.weightOf(run, who[i]);
                else away += ledger.weightOf(run, who[i]);
            }
            vm.assertEq(held, here, "held");
            vm.assertTrue(absent + 1 >= away && absent <= inVerdicts); // others may have changed stage
            vm.assertTrue(held < Weights.FULL + SLACK && absent < Weights.FULL + SLACK);
            uint256 earned_ = held + absent;
            vm.assertEq(vacuum, earned_ < Weights.ENOUGH ? Weights.ENOUGH - earned_ : 0);
        }
        vm.assertEq(bytes(broken), "");
    }

    /// @dev In the end each has what it was counted for, and all together no more than there is.
    function checkPay() external view {
        (, uint32 open,) = ledger.openRound(run);
        for (uint16 stage = 0; stage < STAGES; ++stage) {
            for (uint32 epoch = 0; open >= 16 * (epoch + 1); ++epoch) {
                uint256 sum = 0;
                for (uint256 i = 0; i < ACCOUNTS; ++i) {
                    uint256 has = 0;
                    uint256 stays = ledger.staysOf(run, who[i]).length;
                    for (uint256 k = 0; k <= stays; ++k) has += ledger.earnedIn(run, stage, epoch, who[i], k);
                    vm.assertEq(has, earned[stage][epoch][who[i]], "pay");
                    sum += has;
                }
                vm.assertEq(ledger.sealsIn(run, stage, epoch), sealed_[stage][epoch], "seals");
                vm.assertTrue(sum <= 255 * sealed_[stage][epoch]);
            }
        }
    }

    /// @dev From wherever they left it, all of a stage and the founder close its round in the end.
    function checkProgress() external {
        (bool open, uint32 round,) = ledger.openRound(run);
        if (!open) return;
        pass(1000 * ROUND_TIMEOUT); // what is left of those who changed their stage
        for (uint16 stage = 0; stage < STAGES; ++stage) {
            if (ledger.nextRound(run, stage) == round) ledger.seal(sealBy(run, stage, none(), founded(who)));
        }
        (, uint32 later,) = ledger.openRound(run);
        vm.assertEq(later, round + 1);
    }

    // --------------------------------------------------------------------------------------------------- helpers

    function send(address from, bytes memory call) internal {
        vm.prank(from);
        (bool ok,) = address(ledger).call(call);
        ok;
    }

    /// @dev Of the stage's weight, in 1e-18.
    function partOf(uint16 stage) internal view returns (uint256) {
        uint256 weight = 0;
        for (uint256 i = 0; i < COALITION; ++i) {
            if (ledger.memberOf(run, who[i]).stage == stage) weight += ledger.weightOf(run, who[i]);
        }
        return weight * 1e18 / totalOf(run, stage);
    }

    function isOfCoalition(address account) internal view returns (bool) {
        for (uint256 i = 0; i < COALITION; ++i) if (who[i] == account) return true;
        return false;
    }

    /// @dev What verdicts count of the stage's members.
    function verdictsOf(uint16 stage) internal view returns (uint256) {
        (uint256 held,, uint256 inVerdicts,) = ledger.weightsOf(run, stage);
        return held + inVerdicts;
    }

    function wasIn(address account, uint16 stage) internal view returns (bool) {
        return (ledger.standingOf(run, account).stages >> stage) & 1 == 1;
    }

    function holdsIn(address account, uint16 stage) internal view returns (bool) {
        Member memory m = ledger.memberOf(run, account);
        return m.holds && m.stage == stage;
    }

    /// @dev Those of these replicas whose record the ledger takes, and of whom.
    function make(uint16 stage, uint256 wanted) internal view returns (Work[] memory works) {
        Work[] memory all = new Work[](REPLICAS);
        uint256 count = 0;
        uint32 changed = ledger.nextRound(run, stage) + 1;
        for (uint16 replica = 0; replica < REPLICAS; ++replica) {
            if ((wanted >> replica) & 1 == 0) continue;
            for (uint256 i = 0; i < ACCOUNTS; ++i) {
                Member memory m = ledger.memberOf(run, who[i]);
                if (m.stage != stage || !wasIn(who[i], stage)) continue;
                bool makes = m.changedRound == changed ? m.formerReplica == replica : m.holds && m.replica == replica;
                if (!makes || (count > 0 && all[count - 1].replica == replica)) continue;
                all[count] = workOf(run, who[i]);
                if ((wanted >> (8 + i)) & 3 == 0) all[count].innerSteps = INNER_STEPS / 16;
                all[count++].replica = replica;
            }
        }
        works = new Work[](count);
        for (uint256 i = 0; i < count; ++i) works[i] = all[i];
    }

    function note(uint16 stage, uint256 epoch, Work[] memory works, bool[] memory holds) internal {
        if (works.length == 0) return;
        uint256 total = 0;
        for (uint256 i = 0; i < works.length; ++i) total += works[i].innerSteps;
        uint256 offset = total * ((activityOf(run, stage).nonEmpty - 1) % 16) / 16;
        uint256 sum = 0;
        for (uint256 i = 0; i < works.length; ++i) {
            uint256 next = sum + works[i].innerSteps;
            uint256 pay = (255 * next + offset) / total - (255 * sum + offset) / total;
            if (holds[i]) earned[stage][epoch][works[i].account] += pay;
            sum = next;
        }
        ++sealed_[stage][epoch];
    }

    function ascending(address[] memory list) internal pure returns (address[] memory) {
        for (uint256 i = 1; i < list.length; ++i) {
            for (uint256 j = i; j > 0 && list[j] < list[j - 1]; --j) (list[j], list[j - 1]) = (list[j - 1], list[j]);
        }
        return list;
    }

    function indexOf(address account) internal view returns (uint256 i) {
        while (who[i] != account) ++i;
    }

    function fail(string memory what) internal {
        if (bytes(broken).length == 0) broken = what;
    }
}

/// @notice What holds in every state that members and strangers can bring a run to.
contract InvariantsTest {
    Handler internal handler;

    function setUp() public {
        handler = new Handler();
    }

    function targetContracts() public view returns (address[] memory list) {
        list = new address[](1);
        list[0] = address(handler);
    }

    struct FuzzSelector {
        address addr;
        bytes4[] selectors;
    }

    function targetSelectors() public view returns (FuzzSelector[] memory list) {
        bytes4[] memory deeds = new bytes4[](24);
        (deeds[0], deeds[1], deeds[2]) = (Handler.takeSlot.selector, Handler.leaveSlot.selector, Handler.move.selector);
        (deeds[3], deeds[4], deeds[5]) = (Handler.accuse.selector, Handler.answer.selector, Handler.evict.selector);
        (deeds[6], deeds[7], deeds[8]) = (Handler.deal.selector, Handler.wait.selector, Handler.dismiss.selector);
        (deeds[9], deeds[10], deeds[11]) = (Handler.judge.selector, Handler.enlistOne.selector, Handler.placeSite.selector);
        for (uint256 i = 12; i < 24; ++i) deeds[i] = Handler.work.selector;
        list = new FuzzSelector[](1);
        list[0] = FuzzSelector(address(handler), deeds);
    }

    function invariant_slotsWeightsAndPay() public view {
        handler.checkSlots();
        handler.checkWeights();
    }

    function afterInvariant() public {
        handler.checkPay();
        handler.checkProgress();
    }
}
