// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ReentrancyGuardTransient} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";

import {Campaign, Campaigns, CampaignTerms} from "../src/Campaigns.sol";
import {Seal} from "../src/Seals.sol";
import {CampaignsFixture} from "./CampaignsFixture.sol";
import {vm} from "./Vm.sol";

/// @notice What a campaign pays, and what thieves get.
contract CampaignsTest is CampaignsFixture {
    // ---------------------------------------------------------------------------------------------- the rules

    function test_whatEachStageGetsIsSplitByItsShares() public {
        uint256 id = made(3000);
        ledger.open(RUN);
        rounds(12, ANN, CAT);
        rounds(4, BOB, CAT);
        rounds(WINDOW, ANN, CAT);
        campaigns.settle(id, 9);
        // A third is the epoch's, half of that the stage's.
        vm.assertEq(claim(id, ANN, 0), 375);
        vm.assertEq(claim(id, BOB, 0), 125);
        vm.assertEq(claim(id, CAT, 1), 500);
        vm.assertEq(state(id).claimable, 0);
        vm.assertEq(campaigns.left(id), 2000);
    }

    function test_partsAreWhatTheFunderSays() public {
        vm.prank(PAT);
        uint256 id = campaigns.create{value: 3000}(termsOf(address(0)), parts(0, 10_000), 3000);
        ledger.open(RUN);
        rounds(16 + WINDOW, ANN, CAT);
        campaigns.settle(id, 9);
        vm.assertEq(claim(id, CAT, 1), 1000);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.NothingToClaim.selector, id, ANN));
        campaigns.claim(id, ANN, 0, only(0));
    }

    function test_theLastEpochIsAsLongAsTheRun() public {
        uint256 id = made(3000);
        ledger.open(RUN);
        rounds(ROUNDS, ANN, CAT);
        campaigns.settle(id, 9);
        vm.assertEq(state(id).settled, 2); // the last one's window has no rounds left
        vm.warp(vm.getBlockTimestamp() + PATIENCE + 1);
        campaigns.settle(id, 9);
        vm.assertEq(claimAll(id, ANN, 0), 1500);
        vm.assertEq(claimAll(id, CAT, 1), 1500);
        vm.assertTrue(state(id).closedAt != 0);
    }

    function test_nothingIsClaimableBeforeTheWindow() public {
        uint256 id = made(3000);
        ledger.open(RUN);
        rounds(15 + WINDOW, ANN, CAT);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.NothingToSettle.selector, id));
        campaigns.settle(id, 9);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.NotSettled.selector, 0));
        campaigns.claim(id, ANN, 0, only(0));
    }

    function test_roundsThatAnotherStageDidNotUseCountForNothing() public {
        uint256 id = made(3000);
        ledger.open(RUN);
        rounds(4, ANN, CAT);
        rounds(12, ANN, address(0)); // a captured stage 0 seals what stage 1 cannot use
        rounds(WINDOW, ANN, CAT);
        campaigns.settle(id, 9);
        vm.assertEq(claim(id, ANN, 0), 125); // 4 of 16
        vm.assertEq(claim(id, CAT, 1), 125);
        vm.assertEq(campaigns.refundable(id, PAT), 750);
    }

    function test_unusedFundsGoBackInProportion() public {
        uint256 id = made(3000);
        fund(QUIN, id, 1000);
        ledger.open(RUN);
        rounds(16 + WINDOW, address(0), address(0));
        campaigns.settle(id, 9);
        (uint256 pat, uint256 quin) = (PAT.balance, QUIN.balance);
        campaigns.refund(id, PAT);
        campaigns.refund(id, QUIN);
        vm.assertEq(PAT.balance - pat, 999); // three quarters of 1333
        vm.assertEq(QUIN.balance - quin, 333);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.NothingToRefund.selector, id, QUIN));
        campaigns.refund(id, QUIN);
    }

    function test_aDeadRunsFundsGoBackButForFinishedWork() public {
        uint256 id = made(3000);
        ledger.open(RUN);
        rounds(17, ANN, CAT);
        vm.warp(vm.getBlockTimestamp() + PATIENCE + 1);
        vm.assertTrue(campaigns.isDead(id));
        campaigns.settle(id, 9);
        vm.assertEq(claim(id, ANN, 0), 500);
        vm.assertEq(campaigns.refund(id, PAT), 2000);
        vm.assertEq(claim(id, CAT, 1), 500);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.NothingToSettle.selector, id));
        campaigns.settle(id, 9);
    }

    function test_aRunThatNeverOpensIsDead() public {
        uint256 id = made(3000);
        vm.warp(vm.getBlockTimestamp() + PATIENCE);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.NothingToSettle.selector, id));
        campaigns.settle(id, 9);
        vm.warp(vm.getBlockTimestamp() + 1);
        campaigns.settle(id, 9);
        vm.assertEq(campaigns.refund(id, PAT), 3000);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.Begun.selector, 0));
        campaigns.fund{value: 1}(id, 1);
    }

    function test_whatIsUnclaimedGoesBackAtLast() public {
        uint256 id = made(3000);
        ledger.open(RUN);
        rounds(ROUNDS, ANN, CAT);
        vm.warp(vm.getBlockTimestamp() + PATIENCE + 1);
        campaigns.settle(id, 9);
        vm.assertEq(campaigns.refundable(id, PAT), 0);
        vm.warp(vm.getBlockTimestamp() + campaigns.CLAIM_TIME() + 1);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.ClaimsOver.selector, id));
        campaigns.claim(id, ANN, 0, only(0));
        vm.assertEq(campaigns.refund(id, PAT), 3000);
        vm.assertEq(state(id).claimable, 0);
    }

    function test_settlesAsManyAsAsked() public {
        uint256 id = made(3000);
        ledger.open(RUN);
        rounds(32 + WINDOW, ANN, CAT);
        campaigns.settle(id, 1);
        vm.assertEq(state(id).settled, 1);
        campaigns.settle(id, 1);
        vm.assertEq(state(id).settled, 2);
    }

    function test_paysInAToken() public {
        uint256 id = made(termsOf(address(token)), 3000);
        ledger.open(RUN);
        rounds(16 + WINDOW, ANN, CAT);
        vm.warp(vm.getBlockTimestamp() + PATIENCE + 1);
        campaigns.settle(id, 9);
        claim(id, ANN, 0);
        vm.assertEq(token.balanceOf(ANN), 500);
        uint256 before = token.balanceOf(PAT);
        campaigns.refund(id, PAT);
        vm.assertEq(token.balanceOf(PAT) - before, 2000);
    }

    function test_saysWhatBecameOfTheMoney() public {
        uint256 id = made(3000);
        vm.assertEq(campaigns.campaigns(), 1);
        (uint256[] memory ids, uint256 count) = campaigns.campaignsOf(RUN, 0, 9);
        vm.assertEq(ids.length, 1);
        (ids, count) = campaigns.campaignsOf(RUN, 1, 9);
        vm.assertEq(ids.length + count, 1);
        ledger.open(RUN);
        rounds(16 + WINDOW, ANN, CAT);
        (uint256[] memory pots, uint256[] memory worths) = campaigns.epochsOf(id, 0, 9);
        vm.assertEq(pots.length, 3);
        vm.assertEq(pots[0] + worths[0], 1000);
        campaigns.settle(id, 9);
        (pots, worths) = campaigns.epochsOf(id, 0, 2);
        vm.assertEq(pots.length, 2);
        vm.assertEq(worths[0], 1000);
        vm.assertEq(worths[1], 0);
        (pots, worths) = campaigns.epochsOf(id, 3, 9);
        vm.assertEq(pots.length, 0);
        (uint256 amount, uint256 forfeited) = campaigns.due(id, ANN, 0, only(0));
        vm.assertEq(amount, 500);
        claim(id, ANN, 0);
        vm.assertEq(campaigns.paidTo(id, ANN), 500);
        (amount, forfeited) = campaigns.due(id, ANN, 0, only(0));
        vm.assertEq(amount + forfeited, 0);
        (amount, forfeited) = campaigns.depositOf(id, PAT);
        vm.assertEq(amount, 3000);
    }

    function test_refusesTermsThatCannotBe() public {
        ledger.open(RUN);
        rounds(1, ANN, CAT);
        CampaignTerms memory terms = termsOf(address(0));
        refused(terms, parts(5000, 5000), abi.encodeWithSelector(Campaigns.Begun.selector, 0));
        terms.fromEpoch = 1;
        refused(terms, parts(5000, 4999), invalid("parts"));
        refused(terms, parts(5000, 5001), invalid("parts"));
        refused(terms, new uint16[](3), invalid("parts"));
        terms.toEpoch = 1;
        refused(terms, parts(5000, 5000), invalid("epochs"));
        terms.toEpoch = 4;
        refused(terms, parts(5000, 5000), invalid("epochs"));
        terms.toEpoch = 3;
        terms.patience = 1 days - 1;
        refused(terms, parts(5000, 5000), invalid("patience"));
        terms.patience = 1461 days + 1;
        refused(terms, parts(5000, 5000), invalid("patience"));
        (terms.patience, terms.window) = (PATIENCE, 4097);
        refused(terms, parts(5000, 5000), invalid("window"));
        (terms.window, terms.token, terms.sealRefund) = (WINDOW, address(token), 1);
        refused(terms, parts(5000, 5000), invalid("token"));
        (terms.token, terms.sealRefund) = (address(0xdead), 0);
        refused(terms, parts(5000, 5000), invalid("token"));
        vm.expectRevert(abi.encodeWithSelector(Campaigns.UnknownCampaign.selector, 0));
        campaigns.settle(0, 1);
    }

    // -------------------------------------------------------------------------------------------- the sealer

    function test_aSealersGasComesFirst() public {
        vm.fee(1 gwei);
        CampaignTerms memory terms = termsOf(address(0));
        terms.sealRefund = 1 ether;
        uint256 id = made(terms, 3 ether);
        ledger.open(RUN);
        Seal memory s = sealOf(0, some(ANN));
        vm.prank(BOB);
        campaigns.seal(id, s);
        vm.assertTrue(BOB.balance > 40_000 gwei && BOB.balance < 400_000 gwei);
        (uint256[] memory pots,) = campaigns.epochsOf(id, 0, 1);
        vm.assertEq(pots[0] + BOB.balance, 1 ether);
        ledger.seal(sealOf(1, some(CAT)));
        rounds(15 + WINDOW, ANN, CAT);
        campaigns.settle(id, 9);
        vm.assertEq(claim(id, ANN, 0) + claim(id, CAT, 1) + BOB.balance, 1 ether);
    }

    function test_aRefundIsBoundedAndPaidOnce() public {
        vm.fee(1 gwei);
        CampaignTerms memory terms = termsOf(address(0));
        terms.sealRefund = 100;
        uint256 id = made(terms, 300);
        ledger.open(RUN);
        Seal memory s = sealOf(0, some(ANN));
        vm.prank(BOB);
        campaigns.seal(id, s);
        vm.assertEq(BOB.balance, 100);
        vm.expectRevert();
        campaigns.seal(id, s);
        s = sealOf(1, some(ANN));
        vm.prank(BOB);
        campaigns.seal(id, s); // the epoch's pot is empty
        vm.assertEq(BOB.balance, 100);
        s.run = keccak256("another");
        vm.expectRevert(abi.encodeWithSelector(Campaigns.WrongSeal.selector, id));
        campaigns.seal(id, s);
    }

    // ---------------------------------------------------------------------------------------------- thieves

    function test_theft_aFunderCannotLeaveEarly() public {
        uint256 id = made(3000);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.NothingToRefund.selector, id, PAT));
        campaigns.refund(id, PAT);
        ledger.open(RUN);
        rounds(16 + WINDOW, ANN, CAT);
        campaigns.settle(id, 9);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.NothingToRefund.selector, id, PAT));
        campaigns.refund(id, PAT);
    }

    function test_theft_nobodyFundsAnEpochThatHasBegun() public {
        uint256 id = made(3000);
        ledger.open(RUN);
        rounds(16, ANN, CAT);
        vm.deal(ANN, 100);
        vm.prank(ANN);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.Begun.selector, 0));
        campaigns.fund{value: 100}(id, 100);
    }

    function test_theft_aClaimIsPaidOnce() public {
        uint256 id = made(3000);
        ledger.open(RUN);
        rounds(16 + WINDOW, ANN, CAT);
        campaigns.settle(id, 9);
        vm.assertEq(campaigns.claim(id, ANN, 0, pair(0, 0)), 500);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.NothingToClaim.selector, id, ANN));
        campaigns.claim(id, ANN, 0, only(0));
        // The stay ends, and another begins.
        ledger.quit(RUN, ANN);
        ledger.take(RUN, ANN, 0);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.NothingToClaim.selector, id, ANN));
        campaigns.claim(id, ANN, 0, only(0));
    }

    function test_theft_whoComesAndGoesEarnsWhatItDid() public {
        uint256 id = made(3000);
        ledger.open(RUN);
        rounds(8, ANN, CAT);
        ledger.quit(RUN, ANN);
        rounds(4, ANN, CAT); // a maker without a slot gets nothing
        ledger.take(RUN, ANN, 0);
        rounds(4, ANN, CAT);
        ledger.quit(RUN, ANN);
        ledger.take(RUN, ANN, 1);
        rounds(WINDOW, BOB, ANN);
        campaigns.settle(id, 9);
        vm.assertEq(claim(id, ANN, 0), 375);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.NothingToClaim.selector, id, ANN));
        campaigns.claim(id, ANN, 1, only(0));
    }

    function test_theft_nobodyClaimsAnothersStay() public {
        uint256 id = made(3000);
        ledger.open(RUN);
        rounds(16 + WINDOW, ANN, CAT);
        campaigns.settle(id, 9);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.NothingToClaim.selector, id, BOB));
        campaigns.claim(id, BOB, 0, only(0));
        vm.expectRevert(abi.encodeWithSelector(Campaigns.NothingToClaim.selector, id, ANN));
        campaigns.claim(id, ANN, 1, only(0));
        vm.expectRevert(abi.encodeWithSelector(Campaigns.NotSettled.selector, 0));
        campaigns.claim(id, ANN, 2, only(0));
        vm.prank(BOB); // whoever asks, the account is paid
        campaigns.claim(id, ANN, 0, only(0));
        vm.assertEq(ANN.balance, 500);
    }

    function test_theft_aConvictsPayIsTheFunders() public {
        uint256 id = made(3000);
        ledger.open(RUN);
        rounds(8, ANN, CAT);
        rounds(8 + WINDOW, BOB, CAT);
        ledger.convict(RUN, BOB);
        campaigns.settle(id, 9);
        vm.assertEq(claim(id, BOB, 0), 0);
        vm.assertEq(campaigns.refund(id, PAT), 250);
        vm.assertEq(claim(id, ANN, 0), 250); // and nobody else's: there is nothing to win by convicting others
    }

    function test_theft_aConvictKeepsWhatItClaimedAndGetsNoMore() public {
        uint256 id = made(3000);
        ledger.open(RUN);
        rounds(16 + WINDOW, ANN, CAT);
        campaigns.settle(id, 9);
        vm.assertEq(claim(id, ANN, 0), 500);
        rounds(16, ANN, CAT);
        ledger.convict(RUN, ANN);
        campaigns.settle(id, 9);
        vm.assertEq(campaigns.claim(id, ANN, 0, pair(0, 1)), 0);
        vm.assertEq(campaigns.refundable(id, PAT), 500);
        vm.assertEq(ANN.balance, 500);
    }

    function test_theft_disprovedWorkIsNotPaid() public {
        uint256 id = made(3000);
        ledger.open(RUN);
        rounds(32 + WINDOW, ANN, CAT);
        campaigns.settle(id, 9);
        ledger.disprove(RUN, 0, 20);
        vm.assertEq(campaigns.claim(id, ANN, 0, pair(0, 1)), 500); // of epoch 0
        vm.assertEq(campaigns.claim(id, CAT, 1, pair(0, 1)), 1000);
        vm.assertEq(campaigns.refund(id, PAT), 500);
    }

    function test_theft_noFundsOfARunThatWasDeadBefore() public {
        ledger.open(RUN);
        vm.warp(vm.getBlockTimestamp() + 10 * PATIENCE);
        CampaignTerms memory terms = termsOf(address(0));
        terms.fromEpoch = 1;
        uint256 id = made(terms, 3000);
        vm.assertFalse(campaigns.isDead(id)); // it has its time from the funding on
        vm.warp(vm.getBlockTimestamp() + PATIENCE + 1);
        campaigns.settle(id, 9);
        vm.assertEq(campaigns.refund(id, PAT), 3000);
    }

    function test_theft_dustIsPaidToTheLastWei() public {
        uint256 id = made(1); // a third of a wei an epoch
        fund(QUIN, id, 1);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.WrongAmount.selector, 1, 0));
        campaigns.fund(id, 0);
        ledger.open(RUN);
        rounds(ROUNDS, ANN, CAT);
        vm.warp(vm.getBlockTimestamp() + PATIENCE + 1);
        campaigns.settle(id, 9);
        Campaign memory c = state(id);
        vm.assertEq(c.claimable + c.returned, 2);
    }

    function test_theft_aTokenThatKeepsAPartIsRefused() public {
        token.setFee(1);
        vm.prank(PAT);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.WrongAmount.selector, 3000, 2970));
        campaigns.create(termsOf(address(token)), parts(5000, 5000), 3000);
    }

    function test_theft_aTokenThatLiesIsRefused() public {
        token.lie();
        vm.prank(PAT);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.WrongAmount.selector, 3000, 0));
        campaigns.create(termsOf(address(token)), parts(5000, 5000), 3000);
    }

    function test_theft_ethIsCountedAsSent() public {
        vm.prank(PAT);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.WrongAmount.selector, 3000, 2999));
        campaigns.create{value: 2999}(termsOf(address(0)), parts(5000, 5000), 3000);
        vm.prank(PAT);
        vm.expectRevert(abi.encodeWithSelector(Campaigns.WrongAmount.selector, 0, 1));
        campaigns.create{value: 1}(termsOf(address(token)), parts(5000, 5000), 3000);
    }

    function test_theft_aTokenThatComesBackInFindsTheDoorShut() public {
        uint256 id = made(termsOf(address(token)), 3000);
        ledger.open(RUN);
        rounds(16 + WINDOW, ANN, CAT);
        campaigns.settle(id, 9);
        bytes[] memory calls = new bytes[](4);
        calls[0] = abi.encodeCall(Campaigns.claim, (id, ANN, 0, only(0)));
        calls[1] = abi.encodeCall(Campaigns.refund, (id, PAT));
        calls[2] = abi.encodeCall(Campaigns.settle, (id, 9));
        calls[3] = abi.encodeCall(Campaigns.fund, (id, 1));
        for (uint256 i = 0; i < calls.length; ++i) {
            token.hook(address(campaigns), calls[i]);
            vm.expectRevert(ReentrancyGuardTransient.ReentrancyGuardReentrantCall.selector);
            campaigns.claim(id, ANN, 0, only(0));
        }
    }

    function test_theft_aShrinkingTokenHurtsNobodyElse() public {
        uint256 ours = made(termsOf(address(0)), 3000);
        uint256 id = made(termsOf(address(token)), 3000);
        ledger.open(RUN);
        rounds(16 + WINDOW, ANN, CAT);
        campaigns.settle(id, 9);
        campaigns.settle(ours, 9);
        token.shrink(address(campaigns), 2600);
        vm.expectRevert();
        campaigns.claim(id, ANN, 0, only(0));
        vm.assertEq(claim(ours, ANN, 0), 500);
    }

    // ---------------------------------------------------------------------------------------------- helpers

    function claim(uint256 id, address account, uint16 stage) private returns (uint256) {
        return campaigns.claim(id, account, stage, only(0));
    }

    function claimAll(uint256 id, address account, uint16 stage) private returns (uint256) {
        uint32[] memory epochs = new uint32[](3);
        (epochs[1], epochs[2]) = (1, 2);
        return campaigns.claim(id, account, stage, epochs);
    }

    function refused(CampaignTerms memory terms, uint16[] memory list, bytes memory why) private {
        vm.prank(PAT);
        vm.expectRevert(why);
        campaigns.create{value: 10}(terms, list, 10);
    }

    function invalid(string memory field) private pure returns (bytes memory) {
        return abi.encodeWithSelector(Campaigns.InvalidTerms.selector, field);
    }
}
