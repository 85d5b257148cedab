// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {MessageHashUtils} from "@openzeppelin/contracts/utils/cryptography/MessageHashUtils.sol";

import {Bitmaps} from "./Bitmaps.sol";
import {IBonds, IInvitations, ILedger} from "./ILedger.sol";
import {NodeRegistry} from "./NodeRegistry.sol";
import {Asked, Member, Run, Runs, Stage, Standing, Stay} from "./Runs.sol";
import {Seals} from "./Seals.sol";
import {Enlisted, Sites} from "./Sites.sol";
import {Verdicts} from "./Verdicts.sol";
import {Weights} from "./Weights.sol";

/// @notice The contracts that the ledger asks, and the domain of what is signed for it.
struct Surroundings {
    NodeRegistry registry;
    IInvitations invitations;
    IBonds bonds;
    bytes32 domain;
}

/// @title Who gets a slot, and who loses it
/// @notice Code of the ledger with an address of its own, because one contract cannot hold all: it works on the ledger's
/// state, and says its events.
library Membership {
    using Bitmaps for uint256;
    using Runs for Run;
    using Runs for Stage;
    using Seals for bytes;
    using Verdicts for uint256;
    using Weights for uint256;

    uint16 internal constant ANY_STAGE = type(uint16).max;

    // --------------------------------------------------------------------------------------------------- slots

    function join(Run storage r, Surroundings memory by, bytes32 run, uint16 stage) external {
        Member storage member = _newcomer(r, by, run, msg.sender);
        if (stage != ANY_STAGE && stage >= r.terms.stages) revert ILedger.UnknownStage(stage);

        uint256 replica;
        if ((stage == ANY_STAGE || stage == member.stage) && r.mayReturn(member, msg.sender)) {
            (replica, stage) = (member.replica, member.stage);
        } else {
            (replica, stage) = _freeSlot(r, stage);
        }
        _place(r, by, run, member, msg.sender, replica, stage);
        _openFirst(run, r);
    }

    function enlist(
        Run storage r,
        Surroundings memory by,
        bytes32 run,
        uint16 stage,
        uint40 until,
        bytes calldata signature
    ) external {
        if (!by.registry.isRegistered(msg.sender)) revert ILedger.NotRegistered(msg.sender);
        if (signature.length != Sites.SIGNATURE_BYTES) revert ILedger.SignaturesLength(signature.length);
        bytes32 digest = MessageHashUtils.toTypedDataHash(by.domain, Sites.hash(run, msg.sender));
        address site = signature.signer(0, digest);
        if (site == address(0)) revert ILedger.NotEnlisted(msg.sender);
        r.enlisted[msg.sender] = Enlisted(site, until);
        emit ILedger.SiteEnlisted(run, msg.sender, site, stage, until);
    }

    function joinSite(
        Run storage r,
        Surroundings memory by,
        bytes32 run,
        uint16 replica,
        address[] calldata accounts
    ) external {
        address site = r.enlisted[msg.sender].site;
        if (site == address(0)) revert ILedger.NotEnlisted(msg.sender);
        if (replica >= r.terms.maxReplicas || accounts.length != r.terms.stages) {
            revert ILedger.WrongSlots(replica, accounts.length);
        }
        emit ILedger.SitePlaced(run, site, replica, accounts);
        for (uint16 stage = 0; stage < accounts.length; ++stage) {
            address account = accounts[stage];
            Enlisted memory enlisted = r.enlisted[account];
            if (enlisted.site != site) revert ILedger.NotEnlisted(account);
            if (r.stages[stage].holders[replica] == account) continue;
            if (enlisted.until < block.timestamp) revert ILedger.NotEnlisted(account);
            if (!r.isFree(replica, stage, account)) revert ILedger.NoFreeSlot(stage);
            _place(r, by, run, _newcomer(r, by, run, account), account, replica, stage);
        }
        _openFirst(run, r);
    }

    function moveDown(Run storage r, bytes32 run) external {
        Member storage member = r.holder(msg.sender);
        uint16 from = member.replica;
        if ((r.progress.complete >> from) & 1 == 1) revert ILedger.ReplicaComplete(from);
        uint256 to = r.freeSlot(member.stage, msg.sender);
        if (to >= from) revert ILedger.NoLowerSlot(from, member.stage);
        r.move(member, msg.sender, to);
        emit ILedger.Moved(run, msg.sender, from, uint16(to), member.stage);
        _openFirst(run, r);
    }

    function giveBack(Run storage r, IBonds bonds, bytes32 run) external {
        Member storage member = r.holder(msg.sender);
        // slither-disable-next-line unused-return: whoever leaves by itself has no term to come back
        _release(r, bonds, run, member, msg.sender, false);
        emit ILedger.Left(run, msg.sender, member.replica, member.stage);
    }

    // ------------------------------------------------------------------------------------------------- silence

    function accuse(Run storage r, bytes32 run, address account) external {
        r.requireOpen();
        Member storage member = r.holder(account);
        if (member.asked != Asked.No && !r.countedSinceAsked(member)) {
            if (member.asked != Asked.WorkAnswered || r.isForfeit(member)) revert ILedger.AccusationPending(account);
        }
        if (member.askedAt != 0 && block.timestamp <= uint256(member.askedAt) + r.terms.roundTimeout) {
            revert ILedger.TooEarlyToAccuse(account);
        }
        bool forfeit = r.isForfeit(member);
        if (!forfeit && !_isOpenFor(r, Runs.STALLED_TIMEOUTS)) {
            // slither-disable-next-line unused-return: only that it holds a slot matters
            r.holder(msg.sender);
            if (!_isOpenFor(r, 1) && !_isUncounted(r, member)) revert ILedger.TooEarlyToAccuse(account);
        }
        member.asked = forfeit ? Asked.Work : Asked.Presence;
        member.askedAt = uint40(block.timestamp);
        member.askedSeal = r.stages[member.stage].activity.nonEmpty;
        emit ILedger.Accused(run, account, msg.sender, forfeit);
    }

    function answer(Run storage r, bytes32 run) external {
        Member storage member = r.holder(msg.sender);
        if (member.asked == Asked.Presence || (member.asked != Asked.No && r.countedSinceAsked(member))) {
            member.asked = Asked.No;
        } else if (member.asked == Asked.Work) {
            member.asked = Asked.WorkAnswered;
        } else {
            revert ILedger.NotAccused(msg.sender);
        }
        emit ILedger.Answered(run, msg.sender);
    }

    function evict(Run storage r, IBonds bonds, bytes32 run, address account) external {
        Member storage member = r.holder(account);
        if (member.asked == Asked.No) revert ILedger.NotAccused(account);
        if (r.countedSinceAsked(member)) revert ILedger.CountedSinceAccused(account);
        if (member.asked == Asked.WorkAnswered && !r.isLost(member)) revert ILedger.NotAccused(account);
        uint256 fromTime = uint256(member.askedAt) + r.terms.evictionTime;
        if (block.timestamp < fromTime) revert ILedger.TooEarlyToEvict(fromTime);

        uint64 until = _release(r, bonds, run, member, account, false) ? r.reserve(member, account) : 0;
        member.asked = Asked.No;
        emit ILedger.Evicted(run, account, member.replica, member.stage, until);
    }

    function dismiss(Run storage r, IBonds bonds, bytes32 run, address account, address successor) external {
        if (!r.founders[msg.sender]) revert ILedger.NotFounder(msg.sender);
        Member storage member = r.holder(account);
        Stage storage s = r.stages[member.stage];
        uint256 earned = _earned(r, s);
        // Two thirds of all are the founders'. Or as much as the member's, and a stage stands still.
        if (Runs.vacuum(earned) < 2 * earned && !_isOutweighed(r, earned, r.weightIn(member.stage, member, false))) {
            revert ILedger.NotVacant(member.stage);
        }
        // slither-disable-next-line unused-return: the slot is its successor's, or anybody's
        _release(r, bonds, run, member, account, false);
        member.asked = Asked.No;
        uint64 until = successor == address(0) ? 0 : r.reserve(member, successor);
        emit ILedger.Dismissed(run, account, msg.sender, member.replica, member.stage, successor, until);
    }

    function reclaim(Run storage r, Surroundings memory by, bytes32 run, address account) external {
        Member storage member = _newcomer(r, by, run, msg.sender);
        Member storage other = r.holder(account);
        (uint256 replica, uint16 stage) = (other.replica, other.stage);
        uint256 weight = r.weightIn(stage, member, false);
        bool enough = 16 * uint256(r.terms.maxReplicas) * weight >= Weights.ENOUGH;
        // Else whom a founder dismissed takes the slot back from its successor, before the stage can seal without it.
        if (enough) enough = !_isOutweighed(r, _earned(r, r.stages[stage]), weight);
        if (!enough || r.freeSlot(stage, msg.sender) != Runs.MAX_REPLICAS) {
            revert ILedger.NothingToReclaim(msg.sender, stage);
        }
        bool works = r.nextRound(stage) != r.progress.openRound || !_isOpenFor(r, Runs.RECLAIM_TIMEOUTS);
        uint256 lane = r.stages[stage].laneOf(other);
        if (works || lane.ageOf() != Weights.NEVER || 8 * lane.weightOf() > weight) revert ILedger.NotIdle(account);
        // slither-disable-next-line unused-return: the slot is taken at once
        _release(r, by.bonds, run, other, account, false);
        emit ILedger.Reclaimed(run, msg.sender, account, uint16(replica), stage);
        _place(r, by, run, member, msg.sender, replica, stage);
    }

    function deal(Run storage r, bytes32 run, uint16 replica) external {
        r.requireOpen();
        if ((r.progress.complete >> replica) & 1 == 0) revert ILedger.ReplicaIncomplete(replica);
        uint32 fromRound = r.replicas[replica].since + uint32(Runs.UNCOUNTED_ROUNDS);
        if (r.progress.openRound < fromRound) revert ILedger.TooEarlyToDeal(replica, fromRound);
        uint256 stages = r.terms.stages;
        uint256 most = 0;
        for (uint256 stage = 0; stage < stages; ++stage) {
            uint256 rounds = r.uncounted(stage, replica);
            if (rounds > most) most = rounds;
        }
        if (most < Runs.UNCOUNTED_ROUNDS) revert ILedger.TooEarlyToDeal(replica, r.progress.openRound + 1);
        bool dealt = false;
        for (uint256 stage = 0; stage < stages; ++stage) {
            uint256 held = r.stages[stage].activity.held;
            uint256 drawn = uint256(keccak256(abi.encode(r.progress.draw, r.progress.openRound, replica, stage)));
            for (drawn %= held.size(); drawn != 0; --drawn) {
                held &= held - 1;
            }
            uint256 other = held.lowest();
            if (other == replica) continue;
            dealt = true;
            r.swap(stage, replica, other);
            emit ILedger.Dealt(run, uint16(stage), replica, uint16(other));
        }
        if (!dealt) revert ILedger.NothingDealt(replica);
        r.replicas[replica].since = r.progress.openRound;
    }

    // ------------------------------------------------------------------------------------------------ verdicts

    /// @dev One contribution, and whose it was.
    struct Charge {
        bytes32 run;
        uint16 stage;
        uint32 round;
        address account;
        bytes32 statement;
    }

    function convict(Run storage r, Surroundings memory by, Charge memory c, bytes calldata entries) external {
        Standing storage standing = r.standings[c.account];
        if (standing.convicted) revert ILedger.IsConvicted(c.account);
        if ((standing.stages >> c.stage) & 1 == 0) revert ILedger.NeverHeld(c.account, c.stage);
        if (entries.length % Verdicts.ENTRY_BYTES != 0) revert ILedger.SignaturesLength(entries.length);

        (uint256 votes, bool founder) = _votesFor(r, by.domain, c, entries);
        Member storage member = r.members[c.account];
        uint256 own = r.weightIn(c.stage, member, false);
        Stage storage s = r.stages[c.stage];
        uint256 all = s.heldWeight() + (r.absentNow(s).forVerdicts >> Weights.FRACTION);
        uint256 vacuum = Runs.vacuum(all);
        all += vacuum;
        if (founder) votes += vacuum;
        // Two thirds of the others. And three fifths of all: where the accused has most of the weight it is no minority's.
        uint256 needed = (2 * (all - own) + 2) / 3;
        if (5 * needed < 3 * all) needed = (3 * all + 4) / 5;
        if (votes < needed) revert ILedger.QuorumMissing(votes, needed);

        standing.convicted = true;
        if (member.holds) {
            // slither-disable-next-line unused-return: it has no term to come back
            _release(r, by.bonds, c.run, member, c.account, true);
        } else {
            r.forget(member);
        }
        emit ILedger.Convicted(c.run, c.account, c.stage, c.round, c.statement, entries);
    }

    /// @dev The weight of the makers of these verdicts, each once: they ascend, and whatever does not is skipped. And
    /// whether a founder is among them.
    function _votesFor(Run storage r, bytes32 domain, Charge memory c, bytes calldata entries)
        private
        view
        returns (uint256 votes, bool founder)
    {
        address last = address(0);
        for (uint256 start = 0; start < entries.length; start += Verdicts.ENTRY_BYTES) {
            bytes calldata entry = entries[start:start + Verdicts.ENTRY_BYTES];
            if (!entry.entryOf(0).convicts()) continue;
            bytes32 verdict = Verdicts.hash(c.run, c.stage, c.round, c.account, c.statement, entry);
            address signer = entry.signer(Verdicts.SIGNATURE_AT, MessageHashUtils.toTypedDataHash(domain, verdict));
            if (signer <= last || signer == c.account) continue;
            last = signer;
            if (r.founders[signer]) founder = true;
            votes += r.weightIn(c.stage, r.members[signer], false);
        }
    }

    // ----------------------------------------------------------------------------------------------------- pay

    function earnedIn(Run storage r, uint256 stage, uint256 epoch, address account, uint256 stay)
        external
        view
        returns (uint256)
    {
        if (!_isOver(r, epoch)) revert ILedger.EpochNotOver(epoch);
        Stay[] storage stays = r.stays[account];
        Stage storage s = r.stages[stage];
        if (stay < stays.length) {
            Stay memory past = stays[stay];
            if (past.stage != stage || epoch < past.fromEpoch || epoch > past.toEpoch) return 0;
            return epoch == past.toEpoch ? past.rest : _paid(s, epoch, past.lane);
        }
        Member memory member = r.members[account];
        if (stay > stays.length || !member.holds || member.stage != stage) return 0;
        if (epoch < member.mark / Weights.EPOCH_ROUNDS || epoch > s.activity.epoch) return 0;
        if (epoch < s.activity.epoch) return _paid(s, epoch, member.lane);
        return s.words[member.lane / Weights.LANES].lane(member.lane).payOf();
    }

    function sealsIn(Run storage r, uint256 stage, uint256 epoch) external view returns (uint256) {
        if (!_isOver(r, epoch)) revert ILedger.EpochNotOver(epoch);
        Stage storage s = r.stages[stage];
        return epoch == s.activity.epoch ? s.activity.epochSeals : s.paid[epoch][0] & type(uint16).max;
    }

    function _paid(Stage storage s, uint256 epoch, uint256 lane) private view returns (uint256) {
        return s.paid[epoch][lane / Weights.LANES].lane(lane).payOf();
    }

    function _isOver(Run storage r, uint256 epoch) private view returns (bool) {
        uint256 open = r.progress.openRound;
        return open >= Weights.EPOCH_ROUNDS * (epoch + 1) || open == r.terms.rounds;
    }

    // ------------------------------------------------------------------------------------------------- helpers

    /// @dev The account's membership, which can get a slot.
    function _newcomer(Run storage r, Surroundings memory by, bytes32 run, address account)
        private
        view
        returns (Member storage member)
    {
        if (!by.registry.isRegistered(account)) revert ILedger.NotRegistered(account);
        if (r.standings[account].convicted) revert ILedger.IsConvicted(account);
        member = r.members[account];
        if (member.holds) revert ILedger.AlreadyHolding(account, member.replica, member.stage);
        if (r.progress.openRound == r.terms.rounds) revert ILedger.RunFinished();
        if (r.config.invited && !by.invitations.admits(run, account)) revert ILedger.NotInvited(account);
    }

    function _place(
        Run storage r,
        Surroundings memory by,
        bytes32 run,
        Member storage member,
        address account,
        uint256 replica,
        uint16 stage
    ) private {
        uint32 next = r.nextRound(member.stage);
        if (stage != member.stage && member.changedRound == next + 1) revert ILedger.SealPending(member.stage, next);
        r.take(member, account, replica, stage);
        if (r.enlisted[account].until != 0) r.enlisted[account].until = 0;
        emit ILedger.Joined(run, account, uint16(replica), stage);
        if (r.config.bond != 0) by.bonds.lock(run, account, r.config.bond);
    }

    function _release(Run storage r, IBonds bonds, bytes32 run, Member storage member, address account, bool loses)
        private
        returns (bool counted)
    {
        counted = r.release(member, account, loses);
        if (r.config.bond != 0) bonds.release(run, account);
    }

    function _freeSlot(Run storage r, uint16 stage) private view returns (uint256 replica, uint16 found) {
        replica = Runs.MAX_REPLICAS;
        if (stage != ANY_STAGE) {
            (replica, found) = (r.freeSlot(stage, msg.sender), stage);
        } else {
            for (uint16 each = 0; each < r.terms.stages; ++each) {
                uint256 lowest = r.freeSlot(each, msg.sender);
                if (lowest < replica) (replica, found) = (lowest, each);
            }
        }
        if (replica == Runs.MAX_REPLICAS) revert ILedger.NoFreeSlot(stage);
    }

    /// @dev Opens round 0 once enough replicas are complete; it stays open, whoever leaves.
    function _openFirst(bytes32 run, Run storage r) private {
        if (r.progress.openedAt != 0) return;
        if (uint256(r.progress.complete).size() < r.terms.minReplicas) return;
        uint64 start = r.config.startTime;
        uint40 openedAt = uint40(start > block.timestamp ? start : block.timestamp);
        r.progress.openedAt = openedAt;
        emit ILedger.RunOpened(run, openedAt);
    }

    function _isOpenFor(Run storage r, uint256 timeouts) private view returns (bool) {
        return block.timestamp > r.progress.openedAt + timeouts * r.terms.roundTimeout;
    }

    /// @dev What all members of the stage have in seals, with those that are absent.
    function _earned(Run storage r, Stage storage s) private view returns (uint256) {
        return s.heldWeight() + (r.absentNow(s).forSeals >> Weights.FRACTION);
    }

    /// @dev Whether the founders have no less than this weight in a stage whose members have so much, and a stage of the run
    /// stands still: its newest seals were all empty, or all but an eighth of all. Any stage: those who seal what they
    /// made up in one of them keep the others from working, not that one.
    function _isOutweighed(Run storage r, uint256 earned, uint256 weight) private view returns (bool) {
        uint256 vacuum = Runs.vacuum(earned);
        if (vacuum == 0 || vacuum < weight) return false;
        uint256 stages = r.terms.stages;
        for (uint256 stage = 0; stage < stages; ++stage) {
            Stage storage s = r.stages[stage];
            uint256 seals = r.nextRound(stage);
            if (s.activity.empties >= Runs.EMPTY_SEALS) return true;
            if (seals >= 2 * Runs.EMPTY_SEALS && 8 * uint256(s.activity.nonEmpty) < seals) return true;
        }
        return false;
    }

    function _isUncounted(Run storage r, Member storage member) private view returns (bool) {
        return r.uncounted(member.stage, member.replica) >= Runs.UNCOUNTED_ROUNDS
            && r.nextRound(member.stage) >= member.mark + Runs.UNCOUNTED_ROUNDS;
    }
}
