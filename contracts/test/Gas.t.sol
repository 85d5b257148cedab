// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Seal} from "../src/Seals.sol";
import {Fixture, Work} from "./Fixture.sol";
import {vm} from "./Vm.sol";

contract GasTest is Fixture {
    event Gas(string what, uint256 gas);

    function test_seal8() public { measure(8); }
    function test_seal32() public { measure(32); }
    function test_seal64() public { measure(64); }

    function measure(uint16 n) internal {
        enrol(n);
        bytes32 run = create(configOf(1, 1, n));
        for (uint256 i = 0; i < n; ++i) join(run, who[i], 0);
        for (uint256 k = 0; k < 3; ++k) sealWith(run, 0, who);
        Work[] memory works = worksOf(run, who);
        Seal memory s = signedBy(sealOf(run, 0, works), works, who);
        pass(MIN_ROUND_TIME);
        bytes memory data = abi.encodeCall(ledger.seal, (s));
        uint256 calldataGas;
        for (uint256 i = 0; i < data.length; ++i) calldataGas += data[i] == 0 ? 4 : 16;
        vm.cool(address(ledger));
        uint256 g = gasleft();
        ledger.seal(s);
        g -= gasleft();
        emit Gas("execution", g);
        emit Gas("calldata", calldataGas);
        emit Gas("per contribution", (g + calldataGas + 21000) / n);
    }
}
