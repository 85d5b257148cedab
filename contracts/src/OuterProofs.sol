// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Opening, Openings} from "./Openings.sol";
import {Coding, Part, Payloads} from "./Payloads.sol";
import {Outcome, Seals} from "./Seals.sol";
import {SoftFloat} from "./SoftFloat.sol";

/// @notice What is asked of the ledger.
interface ISealedLedger {
    /// @notice The digest of the stage's newest seal.
    function head(bytes32 run, uint16 stage) external view returns (bytes32);
    /// @notice How many rounds the stage has sealed: before the first one the head is a genesis, which no one signed.
    function nextRound(bytes32 run, uint16 stage) external view returns (uint32);
    /// @notice keccak256(abi.encode(OuterTerms)), as the run's config says; 0: nothing of the run can be proven.
    function outerOf(bytes32 run) external view returns (bytes32);
    function eip712Domain()
        external
        view
        returns (
            bytes1 fields,
            string memory name,
            string memory version,
            uint256 chainId,
            address verifyingContract,
            bytes32 salt,
            uint256[] memory extensions
        );
}

/// @notice How a run's versions follow from its payloads. Numbers of the outer step are float32 bits.
struct OuterTerms {
    Coding coding;
    uint32 lr;
    uint32 momentum; // 0: the outer optimiser has none
    bool nesterov;
    bytes32[] stages; // keccak256(abi.encode(StageTerms)) of each
}

/// @notice Where what is in a stage's files.
struct StageTerms {
    uint64 header; // bytes before the first value of a version's file and of its momentum's
    bytes32 genesis; // Merkle root of V[s,0]
    bytes counts; // of each tensor's values, 8 bytes each, in the order of names
}

/// @notice What a round's seal says beside its run, stage, round and what came before.
struct SealedRound {
    Outcome outcome;
    bytes32 records; // keccak256 of the seal's records
}

/// @notice Consecutive seals of a stage, up to its head or to one that was noted. `previous` is what the first of them
/// says of the one before.
struct History {
    bytes32 run;
    uint16 stage;
    uint32 round; // of the first of them
    bytes32 previous;
    SealedRound[] seals;
}

/// @notice A counted contribution's statement, and the grains of its payload that hold the element.
struct Shown {
    bytes statement;
    Opening[] openings;
}

/// @notice Why a seal is wrong, or a part of it: see OuterProofs.prove.
struct Proof {
    History history; // from the newest non-empty seal before the one in question, or from round 0
    uint256 index; // of the one in question
    OuterTerms terms;
    StageTerms stage;
    bytes records; // of the seal in question
    bool ofMomentum; // whether the element is one of the momentum, else of the weights
    uint32 tensor; // in the order of names
    uint64 element; // of the flattened tensor
    Opening[] state; // of the element: as it was sealed; then its momentum before, if any; then, of weights, its value before
    uint256 from; // of the contributions whose multiplier is not 0, the first that is shown
    Shown[] shown;
}

/// @title A sealed version is disproved by one element of it
/// @notice Whoever has the files shows one value of V[s,t+1], and all that it was made of: V[s,t], the momentum, and the
/// codes and scales of each payload that the seal counts. The contract takes the outer step of that one value. Where its
/// bits are not those that were sealed, the seal is disproved for good. A seal that holds is never: whatever is shown, it
/// must lead to the roots that were sealed and stated.
contract OuterProofs {
    bytes32 private constant DOMAIN_TYPEHASH =
        keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
    bytes32 private constant NO_RECORDS = keccak256("");
    uint256 private constant UNIT = 32768; // of a multiplier: 1.0
    uint256 private constant STATEMENT_BYTES = 896;
    uint32 private constant HEADER = type(uint32).max; // no tensor

    ISealedLedger public immutable ledger;

    /// @notice Whether the seal with that digest was disproved.
    mapping(bytes32 digest => bool) public disproved;
    /// @notice How many rounds of a run's stage were sealed when this was its head, where somebody noted it; 0: nobody.
    mapping(bytes32 run => mapping(uint16 stage => mapping(bytes32 digest => uint256 rounds))) public noted;

    mapping(bytes32 run => mapping(uint16 stage => uint256)) private _first; // round + 1; 0: none
    mapping(bytes32 => uint256) private _sums; // of whoever shows the contributions in several transactions

    /// @notice What was sealed and what is right, as float32 bits. `right` is NaN where a counted payload or statement is
    /// none. Of the header, where tensor is 2^32 - 1, they are bytes, and element is the number of the byte.
    event VersionDisproved(
        bytes32 indexed run,
        uint16 indexed stage,
        uint32 indexed round,
        bytes32 digest,
        bool ofMomentum,
        uint32 tensor,
        uint64 element,
        uint32 sealedBits,
        uint32 right
    );
    /// @notice The contributions before that one are summed up: the sender can go on from there.
    event Summed(bytes32 indexed digest, address indexed sender, uint256 from);

    error NotInHistory(bytes32 digest);
    error WrongTerms();
    error WrongRecords();
    error WrongStatement(uint256 record);
    error NoBase();
    error NoMomentum();
    error NoSuchElement();
    error NotSummed(uint256 from);
    error TooMany(uint256 shown);
    error NothingWrong(uint32 value);

    constructor(ISealedLedger ledger_) {
        ledger = ledger_;
    }

    /// @notice The first round of which a seal of the stage was disproved; 2^32 - 1: none.
    function firstDisproved(bytes32 run, uint16 stage) external view returns (uint32) {
        uint256 first = _first[run][stage];
        return first == 0 ? type(uint32).max : uint32(first - 1);
    }

    /// @notice Histories may end at `previous` from now on; without seals that is the head.
    function note(History calldata history) external {
        _digests(history, 0);
        noted[history.run][history.stage][history.previous] = history.round;
    }

    /// @notice Disprove a seal by an element, or sum up the next contributions of those that it takes. The part of
    /// contribution i is steps_i^2 x multiplier_i x longest / (32768 x sum(steps_j^3)).
    function prove(Proof calldata p) external {
        bytes32 digest = _digests(p.history, p.index);
        _checkTerms(p.history, p.terms, p.stage);
        if (p.records.length == 0 || keccak256(p.records) != p.history.seals[p.index].records) revert WrongRecords();
        (uint256 sum, bool sound, bool whole) = _sum(p, digest);
        if (!whole) return;
        (uint256 bits, uint256 right) = _step(p, sum);
        if (!sound) right = SoftFloat.NAN;
        else if (_same(bits, right)) revert NothingWrong(uint32(right));
        _disprove(p.history, p.index, digest, p.ofMomentum, p.tensor, p.element, bits, right);
    }

    /// @notice Disprove a seal by a byte of the header of its weights or momentum, which is the one of the version before.
    function proveHeader(
        History calldata history,
        uint256 index,
        OuterTerms calldata terms,
        StageTerms calldata stage,
        bool ofMomentum,
        uint256 offset,
        Opening[] calldata found,
        Opening[] calldata before
    ) external {
        bytes32 digest = _digests(history, index);
        _checkTerms(history, terms, stage);
        if (offset >= stage.header) revert NoSuchElement();
        if (ofMomentum && terms.momentum == 0) revert NoMomentum();
        Outcome calldata outcome = history.seals[index].outcome;
        uint256 size = _place(terms.coding, stage, 0).file;
        bytes32 root = ofMomentum ? outcome.momentumRoot : outcome.weightsRoot;
        // slither-disable-next-line unused-return: nothing is opened after it
        (bytes memory one,) = Openings.read(root, size, offset, offset + 1, found, 0);
        (root,) = _base(history, index, stage);
        // slither-disable-next-line unused-return: nothing is opened after it
        (bytes memory other,) = Openings.read(root, size, offset, offset + 1, before, 0);
        if (one[0] == other[0]) revert NothingWrong(uint8(one[0]));
        _disprove(history, index, digest, ofMomentum, HEADER, offset, uint8(one[0]), uint8(other[0]));
    }

    function _disprove(
        History calldata history,
        uint256 index,
        bytes32 digest,
        bool ofMomentum,
        uint32 tensor,
        uint256 element,
        uint256 bits,
        uint256 right
    ) private {
        uint32 round = uint32(history.round + index);
        disproved[digest] = true;
        uint256 first = _first[history.run][history.stage];
        if (first == 0 || round < first - 1) _first[history.run][history.stage] = uint256(round) + 1;
        emit VersionDisproved(
            history.run, history.stage, round, digest, ofMomentum, tensor, uint64(element), uint32(bits), uint32(right)
        );
    }

    // ------------------------------------------------------------------------------------------------- what was sealed

    /// @dev The digest of the seal of that number. Reverts unless the last one is the head, or was noted.
    function _digests(History calldata history, uint256 index) private view returns (bytes32 found) {
        bytes32 domain = _domain();
        bytes32 digest = history.previous;
        for (uint256 i = 0; i < history.seals.length; ++i) {
            SealedRound calldata one = history.seals[i];
            bytes32 hash = keccak256(
                abi.encode(
                    Seals.TYPEHASH, history.run, history.stage, history.round + i, digest, one.outcome, one.records
                )
            );
            digest = keccak256(abi.encodePacked(hex"1901", domain, hash));
            if (i == index) found = digest;
        }
        // A creator chooses its run's genesis, so that alone, or what only stands where a seal would, is no history.
        uint256 rounds = history.round + history.seals.length;
        bool known = rounds != 0 && noted[history.run][history.stage][digest] == rounds;
        if (!known) {
            known = rounds != 0 && rounds == ledger.nextRound(history.run, history.stage)
                && digest == ledger.head(history.run, history.stage);
        }
        if (!known) revert NotInHistory(digest);
    }

    function _domain() private view returns (bytes32) {
        // slither-disable-next-line unused-return: the domain has no salt and no extensions
        (, string memory name, string memory version, uint256 chainId, address verifyingContract,,) =
            ledger.eip712Domain();
        return keccak256(
            abi.encode(DOMAIN_TYPEHASH, keccak256(bytes(name)), keccak256(bytes(version)), chainId, verifyingContract)
        );
    }

    function _checkTerms(History calldata history, OuterTerms calldata terms, StageTerms calldata stage) private view {
        if (keccak256(abi.encode(terms)) != ledger.outerOf(history.run)) revert WrongTerms();
        if (keccak256(abi.encode(stage)) != terms.stages[history.stage]) revert WrongTerms();
    }

    /// @dev The roots of the version that the seal of that number steps from: those of the newest non-empty seal before
    /// it, or the genesis, which has no momentum.
    function _base(History calldata history, uint256 index, StageTerms calldata stage)
        private
        pure
        returns (bytes32 weights, bytes32 momentum)
    {
        for (uint256 i = index; i > 0; --i) {
            SealedRound calldata one = history.seals[i - 1];
            if (one.records != NO_RECORDS) return (one.outcome.weightsRoot, one.outcome.momentumRoot);
        }
        if (history.round != 0) revert NoBase();
        return (stage.genesis, 0);
    }

    // --------------------------------------------------------------------------------------------------- where it lies

    /// @dev Of a tensor: how many values are before it, and its own; where its part of a payload begins. And the bytes of
    /// a payload and of a version's file.
    struct Place {
        uint256 before;
        uint256 count;
        uint256 part;
        uint256 payload;
        uint256 file;
    }

    function _place(Coding calldata coding, StageTerms calldata stage, uint256 tensor)
        private
        pure
        returns (Place memory place)
    {
        uint256 values;
        for (uint256 i = 0; i < stage.counts.length / 8; ++i) {
            uint256 count = uint64(bytes8(stage.counts[8 * i:8 * i + 8]));
            if (i == tensor) (place.before, place.count, place.part) = (values, count, place.payload);
            values += count;
            place.payload += Payloads.sizeOf(coding, count);
        }
        place.file = stage.header + 4 * values;
    }

    // ---------------------------------------------------------------------------------------------------- what is right

    /// @dev The sum of what the contributions add to the element, as far as they are shown; whether all of them are sound,
    /// and whether they are all there are. Multipliers of 0 add nothing.
    function _sum(Proof calldata p, bytes32 digest) private returns (uint256 sum, bool sound, bool whole) {
        Place memory place = _place(p.terms.coding, p.stage, p.tensor);
        if (p.element >= place.count) revert NoSuchElement();
        bytes32 key = keccak256(abi.encode(msg.sender, digest, p.tensor, p.element));
        if (p.from != 0) {
            sum = _sums[key];
            if (sum >> 32 != p.from) revert NotSummed(p.from);
            sum &= type(uint32).max;
        }
        (uint256 longest, uint256 total) = _steps(p.records);
        uint256 end = p.from + p.shown.length;
        uint256 number; // of those whose multiplier is not 0
        for (uint256 i = 0; i < p.records.length / Seals.RECORD_BYTES; ++i) {
            (uint256 steps, uint256 multiplier) = _weight(p.records, i);
            if (multiplier == 0) continue;
            if (number >= p.from && number < end) {
                uint256 value;
                (value, sound) = _contributed(p, place, i, p.shown[number - p.from]);
                if (!sound) return (0, false, true); // no honest member counts that
                uint256 part = SoftFloat.ratio(steps * steps * multiplier * longest, total * UNIT);
                sum = SoftFloat.add(sum, SoftFloat.mul(value, part));
            }
            ++number;
        }
        if (number < end) revert TooMany(p.shown.length);
        if (number > end) {
            _sums[key] = (end << 32) | sum;
            emit Summed(digest, msg.sender, end);
        }
        return (sum, true, number == end);
    }

    /// @dev The element of the payload of a record. Not sound where the statement says a size that the codec does not
    /// give, or the bytes shown are none that a codec makes.
    function _contributed(Proof calldata p, Place memory place, uint256 record, Shown calldata shown)
        private
        view
        returns (uint256 value, bool sound)
    {
        bytes calldata fields = p.records[record * Seals.RECORD_BYTES:(record + 1) * Seals.RECORD_BYTES];
        bytes calldata statement = shown.statement;
        if (Openings.sha(statement) != bytes32(fields[1:33])) revert WrongStatement(record);
        bool fits = statement.length == STATEMENT_BYTES && uint256(bytes32(statement[224:256])) == place.payload;
        if (!fits) return (0, false);
        Part memory part = Part(bytes32(statement[256:288]), place.payload, place.part, place.count);
        return Payloads.valueOf(p.terms.coding, part, p.element, shown.openings);
    }

    /// @dev Of the records whose multiplier is not 0: the most inner steps, and the sum of their cubes.
    function _steps(bytes calldata records) private pure returns (uint256 longest, uint256 total) {
        for (uint256 i = 0; i < records.length / Seals.RECORD_BYTES; ++i) {
            (uint256 steps, uint256 multiplier) = _weight(records, i);
            if (multiplier == 0) continue;
            if (steps > longest) longest = steps;
            total += steps * steps * steps;
        }
        if (total == 0) total = 1;
    }

    function _weight(bytes calldata records, uint256 i) private pure returns (uint256 steps, uint256 multiplier) {
        bytes calldata fields = records[i * Seals.RECORD_BYTES:(i + 1) * Seals.RECORD_BYTES];
        return (uint32(bytes4(fields[37:41])), uint16(bytes2(fields[42:44])));
    }

    /// @dev The element as it was sealed, and what it comes to with this sum.
    function _step(Proof calldata p, uint256 sum) private view returns (uint256 bits, uint256 right) {
        Outcome calldata outcome = p.history.seals[p.index].outcome;
        (bytes32 weights, bytes32 momentum) = _base(p.history, p.index, p.stage);
        Place memory place = _place(p.terms.coding, p.stage, p.tensor);
        uint256 offset = p.stage.header + 4 * (place.before + p.element);
        uint256 next;
        if (p.ofMomentum && p.terms.momentum == 0) revert NoMomentum();
        (bits, next) =
            _float(p.ofMomentum ? outcome.momentumRoot : outcome.weightsRoot, place.file, offset, p.state, next);
        right = sum;
        if (p.terms.momentum != 0) {
            uint256 moment;
            if (momentum != 0) (moment, next) = _float(momentum, place.file, offset, p.state, next);
            moment = SoftFloat.add(SoftFloat.mul(moment, p.terms.momentum), sum);
            if (p.ofMomentum) return (bits, moment);
            right = p.terms.nesterov ? SoftFloat.add(sum, SoftFloat.mul(moment, p.terms.momentum)) : moment;
        }
        uint256 value;
        (value,) = _float(weights, place.file, offset, p.state, next);
        right = SoftFloat.sub(value, SoftFloat.mul(right, p.terms.lr));
    }

    function _float(bytes32 root, uint256 size, uint256 offset, Opening[] calldata openings, uint256 next)
        private
        view
        returns (uint256 bits, uint256 after_)
    {
        bytes memory data;
        (data, after_) = Openings.read(root, size, offset, offset + 4, openings, next);
        for (uint256 i = 4; i > 0; --i) bits = (bits << 8) | uint8(data[i - 1]);
    }

    /// @dev All NaN are one value.
    function _same(uint256 a, uint256 b) private pure returns (bool) {
        return a == b || (a & 0x7fffffff > 0x7f800000 && b & 0x7fffffff > 0x7f800000);
    }
}
