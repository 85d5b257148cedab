// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IERC20Metadata} from "@openzeppelin/contracts/token/ERC20/extensions/IERC20Metadata.sol";

/// @notice What a campaign can be paid in beside ETH; its ABI is what clients need of a token.
interface PayToken is IERC20Metadata {}
