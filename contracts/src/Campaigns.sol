// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {Address} from "@openzeppelin/contracts/utils/Address.sol";
import {ReentrancyGuardTransient} from "@openzeppelin/contracts/utils/ReentrancyGuardTransient.sol";
import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";

import {RunConfig, Standing, Stay} from "./Runs.sol";
import {Seal} from "./Seals.sol";

/// @dev What pay needs of the ledger.
interface PaidLedger {
    function runConfig(bytes32 run) external view returns (RunConfig memory);
    function openRound(bytes32 run) external view returns (bool open, uint32 round, uint64 openedAt);
    /// @notice The account's stays that have ended.
    function staysOf(bytes32 run, address account) external view returns (Stay[] memory);
    /// @notice The pay of one stay of the account in a finished epoch. The stay that lasts has the number of those before.
    function earnedIn(bytes32 run, uint16 stage, uint32 epoch, address account, uint256 stay)
        external
        view
        returns (uint256);
    /// @notice The stage's non-empty seals in a finished epoch.
    function sealsIn(bytes32 run, uint16 stage, uint32 epoch) external view returns (uint256);
    function standingOf(bytes32 run, address account) external view returns (Standing memory);
    function seal(Seal calldata s) external;
}

/// @dev What pay needs of the proofs.
interface Proofs {
    /// @notice The first round of the stage whose sealed version was proven wrong; 2^32-1: none.
    function firstDisproved(bytes32 run, uint16 stage) external view returns (uint32 round);
}

/// @notice What a campaign pays for. An epoch has 16 rounds; the last one of a run may have fewer.
struct CampaignTerms {
    bytes32 run;
    address token; // zero: ETH
    uint32 fromEpoch;
    uint32 toEpoch; // the first one that is not paid
    uint32 window; // rounds after an epoch until its pay can be claimed
    uint32 patience; // seconds without a finished round until the run counts as dead
    uint128 sealRefund; // the most that one seal's gas is refunded with, in wei
}

/// @notice A campaign's state. Of what was funded, `paid` went to accounts, `claimable` is set apart for them, `returned`
/// is its funders' again (`refunded` of that went out), and the rest waits for its epochs.
struct Campaign {
    CampaignTerms terms;
    uint32 rounds; // of the run
    uint40 createdAt;
    uint32 settled; // the first epoch that is not settled yet
    uint40 closedAt; // when the last one was settled, or the run was found dead; 0: not yet
    uint128 funded;
    uint128 paid;
    uint128 claimable;
    uint128 returned;
    uint128 refunded;
    uint16[] parts; // of a pot, of all stages up to each, in ten-thousandths
    uint8[] useful; // of each settled epoch the fewest non-empty seals of any stage
}

/// @dev One word.
struct Deposit {
    uint128 amount;
    uint128 refunded;
}

/// @title Money for work that a run's seals counted
/// @notice Anybody funds a run for epochs to come. A stage's part of an epoch's pot is split by the shares of its seals,
/// and what no work used goes back to the funders in proportion. Nobody owns the contract. It keeps no token's promise:
/// if a token's balances shrink by themselves, whoever claims last gets nothing.
contract Campaigns is ReentrancyGuardTransient {
    using SafeERC20 for IERC20;
    using SafeCast for uint256;

    uint256 public constant EPOCH_ROUNDS = 16;
    uint256 public constant SEAL_PAY = 255; // what one seal's shares come to in the ledger
    uint256 public constant WHOLE = 10_000; // all parts of a pot
    uint256 public constant CLAIM_TIME = 180 days; // after the close; what is unclaimed then goes back
    uint256 public constant MAX_WINDOW = 4096;
    uint256 public constant MIN_PATIENCE = 1 days;
    uint256 public constant MAX_PATIENCE = 1461 days;
    uint256 private constant TIMEOUTS = 32; // of the run's rounds that a campaign is patient at least
    uint256 private constant GAS_OF_CALL = 40_000; // of a transaction, and of what follows the seal
    uint256 private constant GAS_OF_BYTE = 16;
    uint256 private constant RECORD_BYTES = 44; // of the ledger's records and signatures
    uint256 private constant SIGNED_BYTES = 66;
    uint256 private constant UNIT_BITS = 16;

    PaidLedger public immutable ledger;
    Proofs public immutable proofs;

    Campaign[] private _campaigns;
    mapping(bytes32 run => uint256[]) private _campaignsOf;
    mapping(uint256 id => mapping(address funder => Deposit)) private _deposits;
    mapping(uint256 id => mapping(address account => uint256)) public paidTo;
    /// @notice What refunds of seals took from an epoch's pot.
    mapping(uint256 id => mapping(uint256 epoch => uint256)) public sealsPaid;
    /// @dev 16 bits for each of 16 epochs: how much of the account's pay in the ledger was paid for.
    mapping(uint256 id => mapping(address account => mapping(uint256 stage => mapping(uint256 sixteenth => uint256))))
        private _claimed;

    event CampaignCreated(uint256 indexed id, bytes32 indexed run, CampaignTerms terms, uint16[] parts);
    event Funded(uint256 indexed id, address indexed funder, uint256 amount);
    /// @notice The epoch's work is worth `claimable`; `returned` is the funders'.
    event Settled(uint256 indexed id, uint32 epoch, uint256 claimable, uint256 returned);
    /// @notice No epoch is left: `returned` waited for those that the run never finished.
    event Closed(uint256 indexed id, uint256 returned);
    event Claimed(uint256 indexed id, address indexed account, uint16 stage, uint256 amount);
    /// @notice The account was convicted, or its stage's work disproved: its pay is the funders'.
    event Forfeited(uint256 indexed id, address indexed account, uint16 stage, uint256 amount);
    event SealRefunded(uint256 indexed id, address indexed account, uint16 stage, uint32 round, uint256 amount);
    event Refunded(uint256 indexed id, address indexed funder, uint256 amount);

    error UnknownCampaign(uint256 id);
    error InvalidTerms(string field);
    /// @notice Its first epoch has begun: whoever knows what work will earn funds no longer. Make another campaign.
    error Begun(uint32 epoch);
    error WrongAmount(uint256 expected, uint256 received);
    error NothingToSettle(uint256 id);
    error NotSettled(uint32 epoch);
    error NothingToClaim(uint256 id, address account);
    error NothingToRefund(uint256 id, address funder);
    error ClaimsOver(uint256 id);
    error WrongSeal(uint256 id);

    constructor(PaidLedger ledger_, Proofs proofs_) {
        (ledger, proofs) = (ledger_, proofs_);
    }

    // ----------------------------------------------------------------------------------------------- funders

    /// @notice Makes a campaign and funds it.
    /// @param parts what each stage gets of a pot, in ten-thousandths
    function create(CampaignTerms calldata terms, uint16[] calldata parts, uint256 amount)
        external
        payable
        nonReentrant
        returns (uint256 id)
    {
        RunConfig memory config = ledger.runConfig(terms.run);
        if (terms.fromEpoch >= terms.toEpoch || terms.toEpoch > Math.ceilDiv(config.rounds, EPOCH_ROUNDS)) {
            revert InvalidTerms("epochs");
        }
        if (terms.window > MAX_WINDOW) revert InvalidTerms("window");
        uint256 least = Math.max(MIN_PATIENCE, TIMEOUTS * config.roundTimeout);
        if (terms.patience < least || terms.patience > MAX_PATIENCE) revert InvalidTerms("patience");
        if (terms.token != address(0) && (terms.sealRefund != 0 || terms.token.code.length == 0)) {
            revert InvalidTerms("token");
        }
        if (parts.length != config.stages) revert InvalidTerms("parts");

        id = _campaigns.length;
        Campaign storage c = _campaigns.push();
        _campaignsOf[terms.run].push(id);
        c.terms = terms;
        (c.rounds, c.createdAt, c.settled) = (config.rounds, uint40(block.timestamp), terms.fromEpoch);
        uint256 whole = 0;
        for (uint256 stage = 0; stage < parts.length; ++stage) {
            whole += parts[stage];
            if (whole > WHOLE) revert InvalidTerms("parts");
            c.parts.push(uint16(whole));
        }
        if (whole != WHOLE) revert InvalidTerms("parts");
        emit CampaignCreated(id, terms.run, terms, parts);
        _fund(id, c, amount);
    }

    /// @notice Adds to a campaign, in equal parts to all its epochs, as long as none of them has begun.
    function fund(uint256 id, uint256 amount) external payable nonReentrant {
        _fund(id, _campaign(id), amount);
    }

    /// @notice Pays what has come back to the funder, to the funder, whoever asks.
    function refund(uint256 id, address funder) external nonReentrant returns (uint256 amount) {
        Campaign storage c = _campaign(id);
        if (_isOver(c) && c.claimable != 0) {
            c.returned += c.claimable;
            c.claimable = 0;
        }
        amount = refundable(id, funder);
        if (amount == 0) revert NothingToRefund(id, funder);
        _deposits[id][funder].refunded += uint128(amount);
        c.refunded += uint128(amount);
        emit Refunded(id, funder, amount);
        _pay(c.terms.token, funder, amount);
    }

    // ------------------------------------------------------------------------------------------------ epochs

    /// @notice Settles the next epochs, at most so many, that are finished and whose window is over: from then on their
    /// pay can be claimed, and the rest of their pots is the funders'. Closes the campaign after the last one, or where the
    /// run is dead.
    function settle(uint256 id, uint256 most) external nonReentrant {
        Campaign storage c = _campaign(id);
        uint32 first = c.settled;
        bool dead = isDead(id);
        // slither-disable-next-line unused-return: whether a round is open does not matter
        (, uint32 round,) = ledger.openRound(c.terms.run);
        uint32 epoch = first;
        for (; epoch < c.terms.toEpoch && epoch - first < most; ++epoch) {
            uint256 end = _end(c, epoch);
            if (round < end || (round < end + c.terms.window && !dead)) break;
            _settle(id, c, epoch);
        }
        c.settled = epoch;
        bool ended = epoch == c.terms.toEpoch || (dead && round < _end(c, epoch));
        if (c.closedAt != 0 || (epoch == first && !ended)) revert NothingToSettle(id);
        if (!ended) return;
        c.closedAt = uint40(block.timestamp);
        uint256 rest = left(id);
        c.returned += uint128(rest);
        emit Closed(id, rest);
    }

    /// @notice Passes the seal on to the ledger and refunds its gas from the pot of its epoch: about what it cost without
    /// a tip, never more than `sealRefund`. The ledger takes one seal of a (stage, round), so nobody gets it twice.
    function seal(uint256 id, Seal calldata s) external nonReentrant {
        uint256 before = gasleft();
        Campaign storage c = _campaign(id);
        uint256 epoch = s.round / EPOCH_ROUNDS;
        if (s.run != c.terms.run || epoch < c.settled || epoch >= c.terms.toEpoch || c.closedAt != 0) {
            revert WrongSeal(id);
        }
        ledger.seal(s);
        uint256 spent = sealsPaid[id][epoch];
        uint256 most = Math.min(c.terms.sealRefund, _pot(c, epoch) - spent);
        // No more than a maker's and a member's signature for each record, and a founder's: more of them are padding.
        uint256 signed = Math.min(s.signatures.length, SIGNED_BYTES * (2 * (s.records.length / RECORD_BYTES) + 1));
        uint256 used = before - gasleft() + GAS_OF_CALL + GAS_OF_BYTE * (s.records.length + signed);
        uint256 amount = Math.min(most, used * block.basefee);
        if (amount == 0) return;
        sealsPaid[id][epoch] = spent + amount;
        c.paid += uint128(amount);
        emit SealRefunded(id, msg.sender, s.stage, s.round, amount);
        _pay(address(0), msg.sender, amount);
    }

    // ---------------------------------------------------------------------------------------------- accounts

    /// @notice Pays an account for its work in a stage, whoever asks. What a convicted account earned, and what a stage
    /// earned from its first disproved epoch on, goes to the funders instead.
    /// @param epochs settled ones. What was paid for one before is taken off.
    function claim(uint256 id, address account, uint16 stage, uint32[] calldata epochs)
        external
        nonReentrant
        returns (uint256 amount)
    {
        Campaign storage c = _campaign(id);
        if (_isOver(c)) revert ClaimsOver(id);
        Stay[] memory stays = ledger.staysOf(c.terms.run, account);
        (bool convicted, uint256 disproved) = _judged(c.terms.run, stage, account);
        uint256 forfeited = 0;
        for (uint256 i = 0; i < epochs.length; ++i) {
            uint32 epoch = epochs[i];
            (uint256 worth, uint256 units) = _due(id, c, account, stage, epoch, stays);
            if (worth == 0) continue;
            _note(_claimed[id][account][stage], epoch, units);
            if (convicted || epoch >= disproved) forfeited += worth;
            else amount += worth;
        }
        if (amount + forfeited == 0) revert NothingToClaim(id, account);
        c.claimable -= (amount + forfeited).toUint128();
        if (forfeited != 0) {
            c.returned += uint128(forfeited);
            emit Forfeited(id, account, stage, forfeited);
        }
        if (amount == 0) return 0;
        c.paid += uint128(amount);
        paidTo[id][account] += amount;
        emit Claimed(id, account, stage, amount);
        _pay(c.terms.token, account, amount);
    }

    // ------------------------------------------------------------------------------------------------- views

    /// @notice How many campaigns there are; their ids are below that.
    function campaigns() external view returns (uint256) {
        return _campaigns.length;
    }

    /// @notice The ids of at most `most` campaigns of the run, beginning with its `from`-th, and how many it has.
    function campaignsOf(bytes32 run, uint256 from, uint256 most)
        external
        view
        returns (uint256[] memory ids, uint256 count)
    {
        uint256[] storage all = _campaignsOf[run];
        count = all.length;
        if (from >= count) return (ids, count);
        ids = new uint256[](Math.min(most, count - from));
        for (uint256 i = 0; i < ids.length; ++i) ids[i] = all[from + i];
    }

    /// @notice All of a campaign's terms and sums.
    function campaign(uint256 id) external view returns (Campaign memory) {
        return _campaign(id);
    }

    /// @notice Whether the campaign takes no more money: its first epoch has begun.
    function hasBegun(uint256 id) public view returns (bool) {
        CampaignTerms storage terms = _campaign(id).terms;
        // slither-disable-next-line unused-return: whether a round is open does not matter
        (, uint32 round, uint64 openedAt) = ledger.openRound(terms.run);
        uint256 first = EPOCH_ROUNDS * terms.fromEpoch;
        return round > first || (round == first && openedAt != 0 && openedAt <= block.timestamp);
    }

    /// @notice Whether the run has finished no round for as long as the campaign is patient.
    function isDead(uint256 id) public view returns (bool) {
        Campaign storage c = _campaign(id);
        // slither-disable-next-line unused-return: which round is open does not matter
        (,, uint64 openedAt) = ledger.openRound(c.terms.run);
        return block.timestamp > Math.max(openedAt, c.createdAt) + c.terms.patience;
    }

    /// @notice What waits for epochs that are not settled.
    function left(uint256 id) public view returns (uint256) {
        Campaign storage c = _campaign(id);
        return uint256(c.funded) - c.paid - c.claimable - c.returned;
    }

    /// @notice Of at most `most` of its epochs from `first` on: the pot, without what refunds of seals took, and what of it
    /// the epoch's work is worth, once it is settled.
    function epochsOf(uint256 id, uint32 first, uint256 most)
        external
        view
        returns (uint256[] memory pots, uint256[] memory worths)
    {
        Campaign storage c = _campaign(id);
        if (first < c.terms.fromEpoch || first >= c.terms.toEpoch) return (pots, worths);
        pots = new uint256[](Math.min(most, c.terms.toEpoch - first));
        worths = new uint256[](pots.length);
        for (uint256 i = 0; i < pots.length; ++i) {
            pots[i] = _pot(c, first + i) - sealsPaid[id][first + i];
            for (uint256 stage = 0; first + i < c.settled && stage < c.parts.length; ++stage) {
                worths[i] += _worth(id, c, stage, first + i);
            }
        }
    }

    /// @notice What a claim would pay the account, and what it would give to the funders instead.
    function due(uint256 id, address account, uint16 stage, uint32[] calldata epochs)
        external
        view
        returns (uint256 amount, uint256 forfeited)
    {
        Campaign storage c = _campaign(id);
        if (_isOver(c)) return (0, 0);
        Stay[] memory stays = ledger.staysOf(c.terms.run, account);
        (bool convicted, uint256 disproved) = _judged(c.terms.run, stage, account);
        for (uint256 i = 0; i < epochs.length; ++i) {
            // slither-disable-next-line unused-return: nothing is noted here
            (uint256 worth,) = _due(id, c, account, stage, epochs[i], stays);
            if (convicted || epochs[i] >= disproved) forfeited += worth;
            else amount += worth;
        }
    }

    /// @notice What the funder put in, and got back.
    function depositOf(uint256 id, address funder) external view returns (uint256 amount, uint256 refunded) {
        Deposit storage deposit = _deposits[id][funder];
        return (deposit.amount, deposit.refunded);
    }

    /// @notice What the funder can have back now.
    function refundable(uint256 id, address funder) public view returns (uint256) {
        Campaign storage c = _campaign(id);
        Deposit storage deposit = _deposits[id][funder];
        if (deposit.amount == 0) return 0;
        uint256 back = uint256(c.returned) + (_isOver(c) ? c.claimable : 0);
        return back * deposit.amount / c.funded - deposit.refunded;
    }

    // ----------------------------------------------------------------------------------------------- helpers

    function _campaign(uint256 id) private view returns (Campaign storage) {
        if (id >= _campaigns.length) revert UnknownCampaign(id);
        return _campaigns[id];
    }

    /// @dev Takes no token that keeps a part of a transfer.
    function _fund(uint256 id, Campaign storage c, uint256 amount) private {
        if (hasBegun(id) || c.closedAt != 0) revert Begun(c.terms.fromEpoch);
        if (amount == 0) revert WrongAmount(1, 0);
        uint256 wei_ = c.terms.token == address(0) ? amount : 0;
        if (msg.value != wei_) revert WrongAmount(wei_, msg.value);
        if (c.terms.token != address(0)) {
            IERC20 token = IERC20(c.terms.token);
            uint256 before = token.balanceOf(address(this));
            token.safeTransferFrom(msg.sender, address(this), amount);
            uint256 received = token.balanceOf(address(this)) - before;
            if (received != amount) revert WrongAmount(amount, received);
        }
        c.funded += amount.toUint128();
        _deposits[id][msg.sender].amount += uint128(amount);
        emit Funded(id, msg.sender, amount);
    }

    function _settle(uint256 id, Campaign storage c, uint32 epoch) private {
        uint256 fewest = EPOCH_ROUNDS;
        for (uint16 stage = 0; stage < c.parts.length; ++stage) {
            fewest = Math.min(fewest, ledger.sealsIn(c.terms.run, stage, epoch));
        }
        c.useful.push(uint8(fewest));
        uint256 worth = 0;
        for (uint256 stage = 0; stage < c.parts.length; ++stage) worth += _worth(id, c, stage, epoch);
        uint256 rest = _pot(c, epoch) - sealsPaid[id][epoch] - worth;
        c.claimable += worth.toUint128();
        c.returned += rest.toUint128();
        emit Settled(id, epoch, worth, rest);
    }

    /// @dev Keeps that so much of the account's pay of the epoch was paid for.
    function _note(mapping(uint256 sixteenth => uint256) storage claimed, uint256 epoch, uint256 units) private {
        uint256 shift = epoch % 16 * UNIT_BITS;
        uint256 others = claimed[epoch / 16] & ~(uint256(type(uint16).max) << shift);
        claimed[epoch / 16] = others | (units << shift);
    }

    function _pay(address token, address to, uint256 amount) private {
        if (token == address(0)) Address.sendValue(payable(to), amount);
        else IERC20(token).safeTransfer(to, amount);
    }

    /// @dev Whether what is unclaimed has become the funders'.
    function _isOver(Campaign storage c) private view returns (bool) {
        return c.closedAt != 0 && block.timestamp > c.closedAt + CLAIM_TIME;
    }

    /// @dev The first round after the epoch.
    function _end(Campaign storage c, uint256 epoch) private view returns (uint256) {
        return Math.min(EPOCH_ROUNDS * (epoch + 1), c.rounds);
    }

    /// @dev Equal parts of what was funded, to the last wei.
    function _pot(Campaign storage c, uint256 epoch) private view returns (uint256) {
        uint256 count = c.terms.toEpoch - c.terms.fromEpoch;
        uint256 index = epoch - c.terms.fromEpoch;
        return uint256(c.funded) * (index + 1) / count - uint256(c.funded) * index / count;
    }

    /// @dev What the stage gets of the epoch's pot if all rounds are of use.
    function _stagePot(uint256 id, Campaign storage c, uint256 stage, uint256 epoch) private view returns (uint256) {
        uint256 pot = _pot(c, epoch) - sealsPaid[id][epoch];
        uint256 before = stage == 0 ? 0 : c.parts[stage - 1];
        return pot * c.parts[stage] / WHOLE - pot * before / WHOLE;
    }

    /// @dev What all the stage's work in a settled epoch is worth. Rounds that another stage did not use count for nothing.
    function _worth(uint256 id, Campaign storage c, uint256 stage, uint256 epoch) private view returns (uint256) {
        return _stagePot(id, c, stage, epoch) * c.useful[epoch - c.terms.fromEpoch] / _length(c, epoch);
    }

    function _length(Campaign storage c, uint256 epoch) private view returns (uint256) {
        return _end(c, epoch) - EPOCH_ROUNDS * epoch;
    }

    /// @dev What the account's pay is worth beyond what was paid for before, and all its pay.
    function _due(
        uint256 id,
        Campaign storage c,
        address account,
        uint16 stage,
        uint32 epoch,
        Stay[] memory stays
    ) private view returns (uint256 worth, uint256 units) {
        if (epoch < c.terms.fromEpoch || epoch >= c.settled || stage >= c.parts.length) revert NotSettled(epoch);
        for (uint256 i = 0; i < stays.length; ++i) {
            if (stays[i].stage != stage || epoch < stays[i].fromEpoch || epoch > stays[i].toEpoch) continue;
            units += ledger.earnedIn(c.terms.run, stage, epoch, account, i);
        }
        units += ledger.earnedIn(c.terms.run, stage, epoch, account, stays.length);
        uint256 before = uint16(_claimed[id][account][stage][epoch / 16] >> (epoch % 16 * UNIT_BITS));
        if (units <= before) return (0, before);
        uint256 useful = _stagePot(id, c, stage, epoch) * c.useful[epoch - c.terms.fromEpoch];
        uint256 all = SEAL_PAY * ledger.sealsIn(c.terms.run, stage, epoch) * _length(c, epoch);
        worth = useful * units / all - useful * before / all;
    }

    function _judged(bytes32 run, uint16 stage, address account) private view returns (bool convicted, uint256 disproved) {
        convicted = ledger.standingOf(run, account).convicted;
        disproved = proofs.firstDisproved(run, stage) / EPOCH_ROUNDS;
    }
}
