// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {SoftFloat} from "../src/SoftFloat.sol";

/// @dev A ledger that seals whatever it is told, or has what another one sealed.
contract SealedLedger {
    address private _contract = address(this);
    string private _version = "3";
    mapping(bytes32 run => mapping(uint16 stage => bytes32)) public head;
    mapping(bytes32 run => mapping(uint16 stage => uint32)) public nextRound;
    mapping(bytes32 run => bytes32) public outerOf;

    function setDomain(string calldata version, address verifyingContract) external {
        (_version, _contract) = (version, verifyingContract);
    }

    function eip712Domain()
        external
        view
        returns (bytes1, string memory, string memory, uint256, address, bytes32, uint256[] memory)
    {
        return (0x0f, "dlx-node TrainingLedger", _version, block.chainid, _contract, 0, new uint256[](0));
    }

    function setHead(bytes32 run, uint16 stage, bytes32 digest, uint32 rounds) external {
        (head[run][stage], nextRound[run][stage]) = (digest, rounds);
    }

    function setOuter(bytes32 run, bytes32 outer) external {
        outerOf[run] = outer;
    }
}

/// @dev Many operations in one call.
contract Arithmetic {
    function batch(uint256 operation, uint256[] calldata a, uint256[] calldata b)
        external
        view
        returns (uint256[] memory found, uint256 gasUsed)
    {
        found = new uint256[](a.length);
        uint256 before = gasleft();
        for (uint256 i = 0; i < a.length; ++i) {
            if (operation == 0) found[i] = SoftFloat.mul(a[i], b[i]);
            else if (operation == 1) found[i] = SoftFloat.add(a[i], b[i]);
            else if (operation == 2) found[i] = SoftFloat.sub(a[i], b[i]);
            else if (operation == 3) found[i] = SoftFloat.ratio(a[i], b[i]);
            else if (operation == 4) found[i] = SoftFloat.mul(SoftFloat.whole(a[i] >> 1, a[i] & 1 == 1), SoftFloat.half(b[i]));
            else found[i] = a[i] ^ b[i]; // what the loop takes
        }
        gasUsed = before - gasleft();
    }
}
