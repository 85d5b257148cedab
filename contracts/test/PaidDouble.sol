// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {PaidLedger, Proofs} from "../src/Campaigns.sol";
import {RunConfig, Standing, Stay} from "../src/Runs.sol";
import {Seal} from "../src/Seals.sol";

/// @dev Stands for the ledger and for the proofs where pay is tested: whoever calls says what happened. A seal's records
/// are here abi.encode(address[]), and its makers share it evenly.
contract PaidDouble is PaidLedger, Proofs {
    struct Book {
        RunConfig config;
        uint32 round;
        uint64 openedAt;
        uint256 sealedStages;
        mapping(uint16 stage => mapping(uint32 epoch => uint16)) seals;
        mapping(uint16 stage => uint32) disproved; // 1 + round
        mapping(address account => Stay[]) stays; // that have ended
        mapping(address account => Stay) stay; // that lasts: until epoch 2^16-1
        mapping(bytes32 place => uint16) earned;
        mapping(address account => bool) convicted;
    }

    mapping(bytes32 run => Book) private _books;

    error UnknownRun(bytes32 run);
    error NotFinished(uint32 epoch);
    error WrongRound(uint32 round);

    function createRun(bytes32 run, RunConfig calldata config) external {
        _books[run].config = config;
    }

    function open(bytes32 run) external {
        _books[run].openedAt = uint64(block.timestamp);
    }

    function convict(bytes32 run, address account) external {
        _books[run].convicted[account] = true;
    }

    function disprove(bytes32 run, uint16 stage, uint32 round) external {
        uint32 before = _books[run].disproved[stage];
        if (before == 0 || round + 1 < before) _books[run].disproved[stage] = round + 1;
    }

    /// @dev Unless it has a slot.
    function take(bytes32 run, address account, uint8 stage) external {
        Book storage book = _books[run];
        if (book.stay[account].toEpoch == 0) {
            book.stay[account] = Stay(stage, 0, uint16(book.round / 16), type(uint16).max, 0);
        }
    }

    function quit(bytes32 run, address account) external {
        Book storage book = _books[run];
        Stay memory stay = book.stay[account];
        if (stay.toEpoch == 0) return;
        stay.toEpoch = uint16(book.round / 16);
        book.stays[account].push(stay);
        delete book.stay[account];
    }

    function staysOf(bytes32 run, address account) external view returns (Stay[] memory) {
        return _books[run].stays[account];
    }

    function seal(Seal calldata s) external {
        Book storage book = _books[s.run];
        if (s.round != book.round || (book.sealedStages >> s.stage) & 1 == 1) revert WrongRound(s.round);
        if (s.records.length > 0) {
            address[] memory makers = abi.decode(s.records, (address[]));
            ++book.seals[s.stage][s.round / 16];
            for (uint256 i = 0; i < makers.length; ++i) {
                Stay memory stay = book.stay[makers[i]];
                if (stay.toEpoch == 0 || stay.stage != s.stage) continue; // without a slot it gets nothing
                uint256 pay = 255 * (i + 1) / makers.length - 255 * i / makers.length;
                book.earned[_place(s.stage, s.round / 16, makers[i], book.stays[makers[i]].length)] += uint16(pay);
            }
        }
        book.sealedStages |= 1 << s.stage;
        if (book.sealedStages + 1 != 1 << book.config.stages) return;
        (book.sealedStages, book.openedAt) = (0, uint64(block.timestamp));
        ++book.round;
    }

    function runConfig(bytes32 run) external view returns (RunConfig memory config) {
        config = _books[run].config;
        if (config.stages == 0) revert UnknownRun(run);
    }

    function openRound(bytes32 run) external view returns (bool, uint32, uint64) {
        Book storage book = _books[run];
        return (book.openedAt != 0 && book.round < book.config.rounds, book.round, book.openedAt);
    }

    function earnedIn(bytes32 run, uint16 stage, uint32 epoch, address account, uint256 stay)
        external
        view
        returns (uint256)
    {
        _requireFinished(_books[run], epoch);
        return _books[run].earned[_place(stage, epoch, account, stay)];
    }

    function sealsIn(bytes32 run, uint16 stage, uint32 epoch) external view returns (uint256) {
        _requireFinished(_books[run], epoch);
        return _books[run].seals[stage][epoch];
    }

    function standingOf(bytes32 run, address account) external view returns (Standing memory standing) {
        standing.convicted = _books[run].convicted[account];
    }

    function firstDisproved(bytes32 run, uint16 stage) external view returns (uint32) {
        unchecked {
            return _books[run].disproved[stage] - 1;
        }
    }

    function _requireFinished(Book storage book, uint32 epoch) private view {
        uint256 end = 16 * (uint256(epoch) + 1);
        if (book.round < (end < book.config.rounds ? end : book.config.rounds)) revert NotFinished(epoch);
    }

    function _place(uint16 stage, uint32 epoch, address account, uint256 stay) private pure returns (bytes32) {
        return keccak256(abi.encode(stage, epoch, account, stay));
    }
}
