// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Campaign, Campaigns, CampaignTerms} from "../src/Campaigns.sol";
import {Seal} from "../src/Seals.sol";
import {CampaignsFixture} from "./CampaignsFixture.sol";
import {vm} from "./Vm.sol";

/// @dev An account with code that comes back in as soon as it is paid.
contract Greedy {
    Campaigns private immutable _campaigns;
    bytes private _call;

    constructor(Campaigns campaigns) {
        _campaigns = campaigns;
    }

    function come(bytes calldata call) external {
        _call = call;
    }

    receive() external payable {
        (bool done,) = address(_campaigns).call(_call);
        require(!done, "it came back in");
    }
}

/// @dev Players of one run and its campaigns, in any order: funders, members, thieves, captors, and the chain itself.
contract CampaignsHandler is CampaignsFixture {
    uint256 internal constant FUNDERS = 4;
    uint256 internal constant MEMBERS = 5;
    uint256 internal constant MOST = 5; // campaigns

    address[] internal funders;
    address[] internal members;
    uint256 internal snapshot;
    string public broken;
    mapping(uint256 id => uint256) internal funded; // what was sent, recounted
    mapping(uint256 id => uint256) internal out; // what went to accounts
    mapping(uint256 id => uint256) internal back; // what went to funders
    mapping(uint256 id => mapping(address account => uint256)) internal paidBefore; // its conviction

    constructor() {
        for (uint256 i = 0; i < MEMBERS; ++i) members.push(address(uint160(0x1000 + i)));
        members[MEMBERS - 1] = address(new Greedy(campaigns));
        funders = members;
        funders.pop(); // members fund, too, but the last one, and so do strangers
        funders[0] = PAT;
        funders[1] = QUIN;
        for (uint8 i = 0; i < MEMBERS; ++i) ledger.take(RUN, members[i], i % 2);
        for (uint256 i = 0; i < FUNDERS; ++i) {
            vm.deal(funders[i], 1e24);
            token.mint(funders[i], 1e24);
            vm.prank(funders[i]);
            token.approve(address(campaigns), type(uint256).max);
        }
    }

    // ------------------------------------------------------------------------------------------------- moves

    function create(uint256 who, uint256 amount, uint16 part, uint256 dice) external {
        if (campaigns.campaigns() == MOST) return;
        CampaignTerms memory terms = termsOf(dice % 3 == 0 ? address(token) : address(0));
        terms.fromEpoch = uint32(dice >> 8) % 2;
        terms.toEpoch = 3 - uint32(dice >> 16) % 2;
        terms.window = uint32(dice >> 24) % 20;
        if (terms.token == address(0)) terms.sealRefund = uint128(dice >> 32) % 1e13;
        amount = dice % 4 == 0 ? amount % 7 : 1e18 + amount % 1e20;
        part %= 10_001;
        vm.prank(funders[who % FUNDERS]);
        try campaigns.create{value: terms.token == address(0) ? amount : 0}(
            terms, parts(part, 10_000 - part), amount
        ) returns (uint256 id) {
            funded[id] += amount;
        } catch {}
    }

    function fundMore(uint256 who, uint256 id, uint256 amount) external {
        if (campaigns.campaigns() == 0) return;
        id %= campaigns.campaigns();
        amount = amount % 3 == 0 ? amount % 3 : amount % 1e20;
        uint256 value = isToken(id) ? 0 : amount;
        vm.prank(funders[who % FUNDERS]);
        try campaigns.fund{value: value}(id, amount) {
            if (!fresh(id)) fail("a campaign that had begun was funded");
            funded[id] += amount;
        } catch {}
    }

    /// @dev Rounds in which these members work; a captor of one stage may seal what the other cannot use.
    function work(uint256 count, uint256 makers, uint256 dice) external {
        if (campaigns.campaigns() < 2) return; // nothing is paid for what was before
        (, uint32 round, uint64 openedAt) = ledger.openRound(RUN);
        if (openedAt == 0) ledger.open(RUN);
        for (uint256 i = count % 12; i > 0 && round < ROUNDS; --i) {
            vm.warp(vm.getBlockTimestamp() + 60);
            ledger.seal(sealOf(0, chosen(makers)));
            ledger.seal(sealOf(1, dice % 8 == 0 ? new address[](0) : chosen(makers >> 8)));
            (, round,) = ledger.openRound(RUN);
        }
    }

    /// @dev One stage after the other, through a campaign that refunds the gas.
    function sealThrough(uint256 id, uint256 makers, uint256 who) external {
        (, uint32 round, uint64 openedAt) = ledger.openRound(RUN);
        if (campaigns.campaigns() == 0 || openedAt == 0 || round == ROUNDS) return;
        id %= campaigns.campaigns();
        vm.fee(1 gwei);
        for (uint16 stage = 0; stage < 2; ++stage) {
            Seal memory s = sealOf(stage, chosen(makers >> (8 * stage)));
            address sender = members[who % MEMBERS];
            uint256 before = sender.balance;
            vm.prank(sender);
            try campaigns.seal(id, s) {
                if (sender.balance - before > state(id).terms.sealRefund) fail("a seal's refund is too much");
                out[id] += sender.balance - before;
            } catch {
                ledger.seal(s);
            }
        }
    }

    /// @dev Gives a slot back, takes one, or does both.
    function move(uint256 who, uint8 stage, uint256 dice) external {
        if (dice % 4 != 0) ledger.quit(RUN, members[who % MEMBERS]);
        if (dice % 4 != 1) ledger.take(RUN, members[who % MEMBERS], stage % 2);
    }

    function convict(uint256 who, uint256 dice) external {
        if (dice % 3 != 0) return;
        address account = members[who % MEMBERS];
        if (ledger.standingOf(RUN, account).convicted) return;
        ledger.convict(RUN, account);
        for (uint256 id = 0; id < campaigns.campaigns(); ++id) paidBefore[id][account] = campaigns.paidTo(id, account);
    }

    function disprove(uint16 stage, uint32 round, uint256 dice) external {
        if (dice % 8 == 0) ledger.disprove(RUN, stage % 2, round % ROUNDS);
    }

    function settle(uint256 id, uint256 most) external {
        if (campaigns.campaigns() == 0) return;
        try campaigns.settle(id % campaigns.campaigns(), most % 4) {} catch {} // 0: only closes it
    }

    /// @dev For two accounts, in both stages.
    function claim(uint256 id, uint256 who, uint256 dice) external {
        if (campaigns.campaigns() == 0) return;
        for (uint256 i = 0; i < 4; ++i) {
            claimIn(id % campaigns.campaigns(), members[(who + i / 2) % MEMBERS], uint16(i % 2), dice);
        }
    }

    function claimIn(uint256 id, address account, uint16 stage, uint256 dice) private {
        uint32[] memory epochs = settledOf(id, dice);
        if (account == members[MEMBERS - 1]) comeBack(id, account, stage, epochs);
        uint256 before = balanceOf(id, account);
        try campaigns.claim(id, account, stage, epochs) returns (uint256 amount) {
            if (balanceOf(id, account) - before != amount) fail("paid another amount than said");
            out[id] += amount;
        } catch {}
    }

    function refund(uint256 id, uint256 who) external {
        if (campaigns.campaigns() == 0) return;
        id %= campaigns.campaigns();
        address funder = funders[who % FUNDERS];
        uint256 before = balanceOf(id, funder);
        try campaigns.refund(id, funder) {
            back[id] += balanceOf(id, funder) - before;
        } catch {}
    }

    function wait(uint256 time) external {
        vm.warp(vm.getBlockTimestamp() + (time % 8 == 0 ? time % 200 days : time % 1 hours));
    }

    /// @dev The chain takes back what happened since the last call.
    function reorg(uint256 dice) external {
        if (snapshot != 0 && dice % 4 == 0) vm.revertToState(snapshot);
        snapshot = 0;
        snapshot = vm.snapshotState();
    }

    // --------------------------------------------------------------------------------------------- what must hold

    function checkSums() external view {
        uint256 eth = 0;
        uint256 tokens = 0;
        for (uint256 id = 0; id < campaigns.campaigns(); ++id) {
            Campaign memory c = state(id);
            vm.assertEq(c.funded, funded[id], "funded");
            vm.assertEq(c.paid, out[id], "paid");
            vm.assertEq(c.refunded, back[id], "refunded");
            vm.assertEq(uint256(c.paid) + c.claimable + c.returned + campaigns.left(id), c.funded, "sum");
            vm.assertEq(uint256(c.paid) + c.claimable + campaigns.left(id) + (c.returned - c.refunded), c.funded - c.refunded);
            if (c.closedAt != 0) vm.assertEq(campaigns.left(id), 0, "left");
            if (isToken(id)) tokens += c.funded - c.paid - c.refunded;
            else eth += c.funded - c.paid - c.refunded;
        }
        vm.assertEq(address(campaigns).balance, eth, "ETH");
        vm.assertEq(token.balanceOf(address(campaigns)), tokens, "tokens");
        vm.assertEq(bytes(broken), "");
    }

    /// @dev All that anybody could ask for now is there, and is what was returned.
    function checkOwed() external view {
        for (uint256 id = 0; id < campaigns.campaigns(); ++id) {
            Campaign memory c = state(id);
            uint256 owed = 0;
            for (uint256 i = 0; i < MEMBERS; ++i) {
                for (uint16 stage = 0; stage < 2; ++stage) owed += dueTo(id, c, members[i], stage);
            }
            vm.assertFalse(owed > c.claimable);
            uint256 backs = 0;
            uint256 returned = uint256(c.returned) - c.refunded;
            bool over = c.closedAt != 0 && vm.getBlockTimestamp() > c.closedAt + campaigns.CLAIM_TIME();
            if (over) returned += c.claimable;
            for (uint256 i = 0; i < FUNDERS; ++i) backs += campaigns.refundable(id, funders[i]);
            vm.assertFalse(backs > returned || backs + FUNDERS < returned);
        }
    }

    /// @dev Of a settled epoch as much is set apart as its rounds were of use to all stages.
    function checkWorth() external view {
        for (uint256 id = 0; id < campaigns.campaigns(); ++id) {
            Campaign memory c = state(id);
            (uint256[] memory pots, uint256[] memory worths) = campaigns.epochsOf(id, c.terms.fromEpoch, 9);
            for (uint32 i = 0; i < pots.length; ++i) {
                uint32 epoch = c.terms.fromEpoch + i;
                if (epoch >= c.settled) continue;
                (uint256 one, uint256 other) = (ledger.sealsIn(RUN, 0, epoch), ledger.sealsIn(RUN, 1, epoch));
                uint256 most = pots[i] * (one < other ? one : other) / (epoch == 2 ? 8 : 16);
                vm.assertFalse(worths[i] > most || worths[i] + 2 < most);
            }
        }
    }

    /// @dev Nobody gets more than its shares say, and a convict nothing more.
    function checkPay() external view {
        for (uint256 id = 0; id < campaigns.campaigns(); ++id) {
            Campaign memory c = state(id);
            for (uint256 i = 0; i < MEMBERS; ++i) {
                uint256 most = 0;
                for (uint32 epoch = c.terms.fromEpoch; epoch < c.settled; ++epoch) {
                    most += worthOf(id, c, members[i], 0, epoch) + worthOf(id, c, members[i], 1, epoch);
                }
                vm.assertFalse(campaigns.paidTo(id, members[i]) > most);
                if (ledger.standingOf(RUN, members[i]).convicted) {
                    vm.assertEq(campaigns.paidTo(id, members[i]), paidBefore[id][members[i]], "convict");
                }
            }
        }
    }

    // --------------------------------------------------------------------------------------------------- helpers

    /// @dev What its shares of the epoch are worth, by the rule's own words.
    function worthOf(uint256 id, Campaign memory c, address account, uint16 stage, uint32 epoch)
        private
        view
        returns (uint256)
    {
        uint256 units = 0;
        uint256 stays = ledger.staysOf(RUN, account).length;
        for (uint256 i = 0; i <= stays; ++i) units += ledger.earnedIn(RUN, stage, epoch, account, i);
        (uint256 here, uint256 other) = (ledger.sealsIn(RUN, stage, epoch), ledger.sealsIn(RUN, 1 - stage, epoch));
        if (units == 0 || other == 0) return 0;
        (uint256[] memory pots,) = campaigns.epochsOf(id, epoch, 1);
        uint256 pot = pots[0];
        uint256 first = pot * c.parts[0] / 10_000;
        uint256 all = (stage == 0 ? first : pot - first) * (here < other ? here : other) / (epoch == 2 ? 8 : 16);
        return (all + 1) * units / (255 * here) + 1;
    }

    function dueTo(uint256 id, Campaign memory c, address account, uint16 stage) private view returns (uint256) {
        uint32[] memory epochs = new uint32[](c.settled - c.terms.fromEpoch);
        for (uint32 i = 0; i < epochs.length; ++i) epochs[i] = c.terms.fromEpoch + i;
        (uint256 amount, uint256 forfeited) = campaigns.due(id, account, stage, epochs);
        return amount + forfeited;
    }

    /// @dev Some of its settled epochs, of which one may be named twice; or one that may not be settled.
    function settledOf(uint256 id, uint256 dice) private view returns (uint32[] memory epochs) {
        (uint32 first, uint32 end) = (state(id).terms.fromEpoch, state(id).settled);
        if (dice % 4 == 0 || first == end) return only(uint32(dice >> 16) % 3);
        return pair(first + uint32(dice >> 16) % (end - first), first + uint32(dice >> 24) % (end - first));
    }

    function comeBack(uint256 id, address account, uint16 stage, uint32[] memory epochs) private {
        Greedy(payable(account)).come(abi.encodeCall(Campaigns.claim, (id, account, stage, epochs)));
        token.hook(address(campaigns), isToken(id) ? abi.encodeCall(Campaigns.campaigns, ()) : bytes(""));
    }

    function chosen(uint256 bits) private view returns (address[] memory list) {
        bits |= bits >> 64; // most work
        uint256 count = 0;
        for (uint256 i = 0; i < MEMBERS; ++i) count += (bits >> i) & 1;
        list = new address[](count);
        for (uint256 i = 0; i < MEMBERS; ++i) if ((bits >> i) & 1 == 1) list[--count] = members[i];
    }

    function isToken(uint256 id) private view returns (bool) {
        return state(id).terms.token != address(0);
    }

    function fresh(uint256 id) private view returns (bool) {
        (, uint32 round, uint64 openedAt) = ledger.openRound(RUN);
        uint256 first = 16 * state(id).terms.fromEpoch;
        return round < first || (first == 0 && openedAt == 0);
    }

    function balanceOf(uint256 id, address account) private view returns (uint256) {
        return isToken(id) ? token.balanceOf(account) : account.balance;
    }

    function fail(string memory what) private {
        if (bytes(broken).length == 0) broken = what;
    }
}

/// @notice Every wei of a campaign is in one place, and the contract has what it owes, whoever does what when.
/// forge-config: default.invariant.runs = 6
/// forge-config: default.invariant.depth = 150
contract CampaignsInvariantsTest {
    CampaignsHandler internal handler;

    function setUp() public {
        handler = new CampaignsHandler();
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
        bytes4[] memory deeds = new bytes4[](20);
        (deeds[0], deeds[1]) = (CampaignsHandler.create.selector, CampaignsHandler.create.selector);
        (deeds[2], deeds[3]) = (CampaignsHandler.fundMore.selector, CampaignsHandler.settle.selector);
        (deeds[4], deeds[5]) = (CampaignsHandler.move.selector, CampaignsHandler.convict.selector);
        (deeds[6], deeds[7]) = (CampaignsHandler.disprove.selector, CampaignsHandler.wait.selector);
        (deeds[8], deeds[9]) = (CampaignsHandler.reorg.selector, CampaignsHandler.sealThrough.selector);
        for (uint256 i = 10; i < 13; ++i) deeds[i] = CampaignsHandler.work.selector;
        for (uint256 i = 13; i < 15; ++i) deeds[i] = CampaignsHandler.settle.selector;
        for (uint256 i = 15; i < 18; ++i) deeds[i] = CampaignsHandler.claim.selector;
        for (uint256 i = 18; i < 20; ++i) deeds[i] = CampaignsHandler.refund.selector;
        list = new FuzzSelector[](1);
        list[0] = FuzzSelector(address(handler), deeds);
    }

    function invariant_everyWeiIsInOnePlace() public view {
        handler.checkSums();
        handler.checkOwed();
        handler.checkPay();
        handler.checkWorth();
    }
}
