// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Campaign, Campaigns, CampaignTerms, PaidLedger, Proofs} from "../src/Campaigns.sol";
import {RunConfig} from "../src/Runs.sol";
import {Seal} from "../src/Seals.sol";
import {Fixture} from "./Fixture.sol";
import {vm} from "./Vm.sol";

/// @dev Proofs that have disproved nothing, unless told.
contract ProofsDouble is Proofs {
    uint32 public round = type(uint32).max;

    function disprove(uint32 round_) external {
        round = round_;
    }

    function firstDisproved(bytes32, uint16) external view returns (uint32) {
        return round;
    }
}

/// @notice Pay over the real ledger: what its seals count is what its accounts get, whoever comes and goes.
contract CampaignsLedgerTest is Fixture {
    uint32 internal constant PATIENCE = 2 days;
    uint32 internal constant WINDOW = 2;
    uint256 internal constant POT = 1 ether;

    Campaigns internal campaigns;
    ProofsDouble internal proofs;
    bytes32 internal run;
    uint256 internal id;
    address internal newcomer;
    uint256 internal away; // members that left
    mapping(address account => mapping(uint256 epoch => uint256)) internal shares; // of seals, recounted

    function setUp() public {
        proofs = new ProofsDouble();
        campaigns = new Campaigns(PaidLedger(address(ledger)), proofs);
        enrol(6);
        RunConfig memory config = configOf(2, 1, 3);
        config.rounds = 36;
        run = create(config);
        vm.deal(address(this), 100 ether);
        uint16[] memory parts = new uint16[](2);
        (parts[0], parts[1]) = (5000, 5000);
        CampaignTerms memory terms = CampaignTerms(run, address(0), 0, 3, WINDOW, PATIENCE, 1 ether / 1000);
        id = campaigns.create{value: 3 * POT}(terms, parts, 3 * POT);
        for (uint256 i = 0; i < 4; ++i) join(run, who[i], uint16(i % 2));
    }

    receive() external payable {}

    function test_whatSealsCountedIsPaid() public {
        rounds(16 + WINDOW);
        campaigns.settle(id, 9);
        uint256 sum = 0;
        for (uint256 i = 0; i < 4; ++i) {
            uint256 amount = claim(who[i], uint16(i % 2), 0);
            vm.assertEq(who[i].balance, amount);
            near(amount, POT / 4);
            sum += amount;
        }
        vm.assertEq(sum, POT); // two shares of 255 a seal come to all of it
        vm.assertEq(state().claimable, 0);
    }

    function test_whoComesAndGoesIsPaidForWhatItDid() public {
        rounds(5);
        leave(who[0]);
        rounds(3);
        come(who[4]); // takes the lane that is free
        rounds(4);
        come(who[0]); // and comes back to another
        rounds(4 + WINDOW);
        campaigns.settle(id, 9);
        expectPay(who[0], 0);
        expectPay(who[2], 0);
        expectPay(who[4], 0);
        near(state().claimable, POT / 2); // of stage 1; the rest is less than shares are whole
        // Once it leaves for good, nothing changes.
        leave(who[0]);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.NothingToClaim.selector, id, who[0]));
        campaigns.claim(id, who[0], 0, only(0));
    }

    function test_aStayOverEpochsIsPaidInEach() public {
        rounds(20);
        leave(who[0]);
        rounds(12 + WINDOW);
        campaigns.settle(id, 9);
        for (uint32 epoch = 0; epoch < 2; ++epoch) {
            expectPay(who[0], epoch);
            expectPay(who[2], epoch);
        }
    }

    event Gas(string what, uint256 gas);

    function test_gas() public {
        rounds(32 + WINDOW);
        uint256 gas = cooled();
        campaigns.settle(id, 1);
        emit Gas("settle, an epoch of 2 stages", gas - gasleft());
        campaigns.settle(id, 1);
        gas = cooled();
        campaigns.claim(id, who[0], 0, only(0));
        emit Gas("claim, an epoch", gas - gasleft());
        gas = cooled();
        campaigns.claim(id, who[0], 0, only(1));
        emit Gas("claim, one more", gas - gasleft());
        uint32[] memory both = new uint32[](2);
        both[1] = 1;
        gas = cooled();
        campaigns.claim(id, who[2], 0, both);
        emit Gas("claim, two epochs", gas - gasleft());
    }

    function test_theRunsEndIsPaidToo() public {
        rounds(36);
        pass(PATIENCE + 1);
        campaigns.settle(id, 9);
        vm.assertTrue(state().closedAt != 0);
        for (uint32 epoch = 0; epoch < 3; ++epoch) near(claim(who[1], 1, epoch), POT / 4);
    }

    function test_convictsAndDisprovedStagesArePaidNothing() public {
        rounds(32 + WINDOW);
        campaigns.settle(id, 9);
        proofs.disprove(20);
        near(claim(who[0], 0, 0), POT / 4);
        vm.assertEq(claim(who[0], 0, 1), 0);
        near(campaigns.refundable(id, address(this)), POT / 4);
    }

    function test_aSealThroughACampaignIsTheLedgersSeal() public {
        vm.fee(1 gwei);
        Seal memory s = sealBy(run, 0, pairOf(0), founded(pairOf(0)));
        pass(MIN_ROUND_TIME);
        address sender = address(0x5e4de2);
        vm.prank(sender);
        campaigns.seal(id, s);
        vm.assertEq(ledger.nextRound(run, 0), 1);
        vm.assertTrue(sender.balance > 100_000 gwei && sender.balance < 400_000 gwei);
        vm.assertEq(campaigns.sealsPaid(id, 0), sender.balance);
    }

    // ---------------------------------------------------------------------------------------------- helpers

    /// @dev All who have a slot work, but for who has just come. Where others have left, its seals wait for their weight.
    function rounds(uint256 count) private {
        for (uint256 i = 0; i < count; ++i) {
            (, uint32 round,) = ledger.openRound(run);
            address[] memory makers = holders(0);
            newcomer = address(0);
            for (uint256 k = 0; k < makers.length; ++k) shares[makers[k]][round / 16] += 1e18 / makers.length;
            if (away != 0) pass(8 * ROUND_TIMEOUT);
            sealWith(run, 0, makers);
            sealWith(run, 1, holders(1));
        }
    }

    function come(address account) private {
        join(run, account, 0);
        newcomer = account;
    }

    function expectPay(address account, uint32 epoch) private {
        near(claim(account, 0, epoch), POT / 2 * shares[account][epoch] / 16e18);
    }

    function cooled() private returns (uint256) {
        vm.cool(address(ledger));
        vm.cool(address(campaigns));
        return gasleft();
    }

    function holders(uint16 stage) private view returns (address[] memory list) {
        address[] memory found = new address[](who.length);
        uint256 count = 0;
        for (uint16 replica = 0; replica < 3; ++replica) {
            address account = ledger.holderOf(run, replica, stage);
            if (account != address(0) && account != newcomer) found[count++] = account;
        }
        list = new address[](count);
        for (uint256 i = 0; i < count; ++i) list[i] = found[i];
    }

    function pairOf(uint16 stage) private view returns (address[] memory) {
        return some(who[stage], who[stage + 2]);
    }

    function leave(address account) private {
        vm.prank(account);
        ledger.leaveRun(run);
        ++away;
    }

    function claim(address account, uint16 stage, uint32 epoch) private returns (uint256) {
        return campaigns.claim(id, account, stage, only(epoch));
    }

    function state() private view returns (Campaign memory) {
        return campaigns.campaign(id);
    }

    function only(uint32 epoch) private pure returns (uint32[] memory list) {
        list = new uint32[](1);
        list[0] = epoch;
    }

    /// @dev To one part in 200: shares are whole 255ths of a seal.
    function near(uint256 found, uint256 wanted) private pure {
        uint256 off = found > wanted ? found - wanted : wanted - found;
        if (off * 200 > wanted) vm.assertEq(found, wanted, "not near");
    }
}
