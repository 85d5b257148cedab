// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Campaign, Campaigns, CampaignTerms} from "../src/Campaigns.sol";
import {RunConfig} from "../src/Runs.sol";
import {Outcome, Seal} from "../src/Seals.sol";
import {PaidDouble} from "./PaidDouble.sol";
import {Token} from "./Tokens.sol";
import {vm} from "./Vm.sol";

/// @dev Campaigns over doubles of the ledger and the proofs, and who takes part.
abstract contract CampaignsFixture {
    uint32 internal constant PATIENCE = 2 days;
    uint32 internal constant WINDOW = 4;
    uint32 internal constant ROUNDS = 40; // two epochs and a half
    bytes32 internal constant RUN = keccak256("run");
    address internal constant ANN = address(0xa11);
    address internal constant BOB = address(0xb0b);
    address internal constant CAT = address(0xca7);
    address internal constant PAT = address(0x9a7); // funds
    address internal constant QUIN = address(0x901); // likewise

    PaidDouble internal ledger;
    Campaigns internal campaigns;
    Token internal token;

    constructor() {
        vm.warp(1_800_000_000);
        ledger = new PaidDouble();
        campaigns = new Campaigns(ledger, ledger);
        token = new Token();
        RunConfig memory config;
        (config.stages, config.rounds, config.roundTimeout) = (2, ROUNDS, 600);
        ledger.createRun(RUN, config);
        ledger.take(RUN, ANN, 0);
        ledger.take(RUN, BOB, 0);
        ledger.take(RUN, CAT, 1);
        for (uint256 i = 0; i < 2; ++i) {
            address funder = i == 0 ? PAT : QUIN;
            vm.deal(funder, 1e24);
            token.mint(funder, 1e24);
            vm.prank(funder);
            token.approve(address(campaigns), type(uint256).max);
        }
    }

    function termsOf(address paidIn) internal pure returns (CampaignTerms memory) {
        return CampaignTerms(RUN, paidIn, 0, 3, WINDOW, PATIENCE, 0);
    }

    function parts(uint16 first, uint16 second) internal pure returns (uint16[] memory list) {
        list = new uint16[](2);
        (list[0], list[1]) = (first, second);
    }

    /// @dev Of PAT, with so much ETH, for all epochs, both stages alike.
    function made(uint256 amount) internal returns (uint256) {
        return made(termsOf(address(0)), amount);
    }

    function made(CampaignTerms memory terms, uint256 amount) internal returns (uint256) {
        vm.prank(PAT);
        return campaigns.create{value: terms.token == address(0) ? amount : 0}(terms, parts(5000, 5000), amount);
    }

    function fund(address funder, uint256 id, uint256 amount) internal {
        vm.prank(funder);
        campaigns.fund{value: amount}(id, amount);
    }

    function sealOf(uint16 stage, address[] memory makers) internal view returns (Seal memory s) {
        (, uint32 round,) = ledger.openRound(RUN);
        (s.run, s.stage, s.round) = (RUN, stage, round);
        s.outcome = Outcome(0, 0, 0, 0, 0);
        if (makers.length != 0) s.records = abi.encode(makers);
    }

    /// @dev So many rounds in which `first` works in stage 0 and `second` in stage 1; zero for nobody.
    function rounds(uint256 count, address first, address second) internal {
        for (uint256 i = 0; i < count; ++i) {
            vm.warp(vm.getBlockTimestamp() + 60);
            ledger.seal(sealOf(0, some(first)));
            ledger.seal(sealOf(1, some(second)));
        }
    }

    function some(address account) internal pure returns (address[] memory list) {
        list = new address[](account == address(0) ? 0 : 1);
        if (account != address(0)) list[0] = account;
    }

    function only(uint32 number) internal pure returns (uint32[] memory list) {
        list = new uint32[](1);
        list[0] = number;
    }

    function pair(uint32 first, uint32 second) internal pure returns (uint32[] memory list) {
        list = new uint32[](2);
        (list[0], list[1]) = (first, second);
    }

    /// @dev What became of a campaign's money.
    function state(uint256 id) internal view returns (Campaign memory) {
        return campaigns.campaign(id);
    }
}
