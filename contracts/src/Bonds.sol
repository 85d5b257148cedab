// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Deployed} from "./Deployed.sol";
import {Outcome, Seals} from "./Seals.sol";

/// @notice Who knows which seals stand for a wrong version.
interface Disproofs {
    /// @notice Whether the seal with this digest was shown, by arithmetic, to name a version that does not follow.
    function disproved(bytes32 digest) external view returns (bool);
}

/// @notice A seal but for what its records came to.
struct SealBasis {
    bytes32 run;
    uint16 stage;
    uint32 round;
    bytes32 previous; // the digest of the stage's seal before
    bytes32 records; // keccak256 of the records, which have payloads, inner steps and multipliers
}

/// @title What an account has at stake in a run, and what takes it
/// @notice The ledger that locks is the namespace: whoever deposits for a ledger trusts that ledger's code, and no other
/// contract reaches the money. A slot's money is slashed by exact evidence only, which everybody can check: no verdict of
/// members comes near it. A tenth goes to who brought the evidence and the rest to nobody, so that a cheater that
/// reports itself loses nine tenths, by whatever way.
contract Bonds is Deployed {
    using Seals for bytes;

    /// @notice How long money stays slashable after its slot was lost.
    uint256 public constant UNBONDING = 7 days;
    uint256 public constant REWARD_PARTS = 10;
    address public constant BURNT = 0x000000000000000000000000000000000000dEaD;

    uint256 private constant STATEMENT_BYTES = 896; // 28 words
    bytes32 private constant DOMAIN_TYPEHASH =
        keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
    bytes32 private constant LEDGER_NAME = keccak256("dlx-node TrainingLedger");
    bytes32 private constant LEDGER_VERSION = keccak256("3");

    /// @notice Whose word on false versions counts, here for all ledgers: a digest names its ledger.
    Disproofs public immutable proofs;

    /// @dev Two words.
    struct Bond {
        uint128 free; // deposited, and not at stake
        uint128 locked; // at stake while the account holds a slot
        uint128 unbonding; // at stake until `freeAt`
        uint64 freeAt;
        bool slashed;
    }

    mapping(address ledger => mapping(bytes32 run => mapping(address account => Bond))) private _bonds;

    event Deposited(address indexed ledger, bytes32 indexed run, address indexed account, uint256 amount, address by);
    event Withdrawn(address indexed ledger, bytes32 indexed run, address indexed account, uint256 amount);
    event Locked(address indexed ledger, bytes32 indexed run, address indexed account, uint256 amount);
    event Released(
        address indexed ledger, bytes32 indexed run, address indexed account, uint256 amount, uint64 freeAt
    );
    /// @notice `offence` is the first of the digests that the account signed; the reporter got `reward` of `amount`.
    event Slashed(
        address indexed ledger,
        bytes32 indexed run,
        address indexed account,
        uint256 amount,
        uint256 reward,
        address reporter,
        bytes32 offence
    );

    error BondMissing(address account, uint256 missing);
    error IsSlashed(address account);
    error NothingAtStake(address account);
    error NothingToWithdraw(address account);
    error NoContradiction();
    error InvalidStatement();
    error SignatureMissing();
    error NotDisproved(bytes32 digest);
    error NotPaid(address account);

    constructor(Disproofs proofs_) {
        proofs = proofs_;
    }

    // --------------------------------------------------------------------------------------------------- money

    /// @notice Gives the account what it can bring into a run of the ledger. Only the account gets it back.
    function deposit(address ledger, bytes32 run, address account) external payable {
        _bonds[ledger][run][account].free += uint128(msg.value);
        emit Deposited(ledger, run, account, msg.value, msg.sender);
    }

    /// @notice Pays the sender all that is not at stake.
    function withdraw(address ledger, bytes32 run) external {
        Bond storage bond = _bondOf(ledger, run, msg.sender);
        uint256 amount = bond.free;
        if (amount == 0) revert NothingToWithdraw(msg.sender);
        bond.free = 0;
        emit Withdrawn(ledger, run, msg.sender, amount);
        _pay(msg.sender, amount);
    }

    /// @notice Puts so much of the account's at stake, with what is at stake already. For ledgers, as a slot is taken.
    function lock(bytes32 run, address account, uint256 amount) external {
        Bond storage bond = _bondOf(msg.sender, run, account);
        if (bond.slashed) revert IsSlashed(account);
        if (bond.locked >= amount) return;
        uint256 missing = amount - bond.locked;
        uint256 kept = missing < bond.unbonding ? missing : bond.unbonding;
        uint256 fresh = missing - kept;
        if (fresh > bond.free) revert BondMissing(account, fresh - bond.free);
        bond.unbonding -= uint128(kept);
        bond.free -= uint128(fresh);
        bond.locked = uint128(amount);
        emit Locked(msg.sender, run, account, amount);
    }

    /// @notice Lets what is locked become free in UNBONDING. For ledgers, as a slot is lost, whoever took it.
    function release(bytes32 run, address account) external {
        Bond storage bond = _bondOf(msg.sender, run, account);
        uint128 amount = bond.locked;
        if (amount == 0) return;
        bond.locked = 0;
        bond.unbonding += amount;
        bond.freeAt = uint64(block.timestamp + UNBONDING);
        emit Released(msg.sender, run, account, amount, bond.freeAt);
    }

    /// @notice What the account has in a run of the ledger, in wei: what is free; what is at stake in a slot, and until
    /// `freeAt` without one; and whether it was slashed, after which it locks nothing there again.
    function bondOf(address ledger, bytes32 run, address account)
        external
        view
        returns (uint128 free, uint128 locked, uint128 unbonding, uint64 freeAt, bool slashed)
    {
        Bond storage bond = _bonds[ledger][run][account];
        if (block.timestamp >= bond.freeAt) return (bond.free + bond.unbonding, bond.locked, 0, 0, bond.slashed);
        return (bond.free, bond.locked, bond.unbonding, bond.freeAt, bond.slashed);
    }

    // ------------------------------------------------------------------------------------------------ evidence

    /// @notice The account signed two contributions to one round of a stage, from the same base and by the same plan.
    /// @param first a statement, 896 bytes, with the signature of the contribution that it makes
    function twoStatements(
        address ledger,
        bytes calldata first,
        bytes calldata firstSignature,
        bytes calldata second,
        bytes calldata secondSignature
    ) external {
        (bytes32 name, bytes32 other) = (_name(first), _name(second));
        if (name == other) revert NoContradiction();
        // Run, round, stage; account, base; plan. The slot may be another: an account has one at a time.
        bool same = _same(first, second, 0, 3) && _same(first, second, 4, 6) && _same(first, second, 9, 10);
        if (!same) revert NoContradiction();
        address account = address(uint160(_word(first, 4)));
        bytes32 digest = _digest(ledger, _contributionHash(first, name));
        _requireSigned(digest, firstSignature, account);
        _requireSigned(_digest(ledger, _contributionHash(second, other)), secondSignature, account);
        _slash(ledger, bytes32(_word(first, 0)), account, digest);
    }

    /// @notice The account signed two seals that say of the same records, after the same seal, that other versions follow.
    function twoSeals(
        address ledger,
        SealBasis calldata basis,
        Outcome calldata first,
        bytes calldata firstSignature,
        Outcome calldata second,
        bytes calldata secondSignature
    ) external {
        // What the plans are, in the same outcome, is the proposer's choice.
        bool same = first.weights == second.weights && first.momentum == second.momentum
            && first.weightsRoot == second.weightsRoot && first.momentumRoot == second.momentumRoot;
        if (same) revert NoContradiction();
        bytes32 digest = _digest(ledger, _sealHash(basis, first));
        address account = _signer(digest, firstSignature);
        _requireSigned(_digest(ledger, _sealHash(basis, second)), secondSignature, account);
        _slash(ledger, basis.run, account, digest);
    }

    /// @notice The account signed a seal whose version was disproved.
    function falseVersion(
        address ledger,
        SealBasis calldata basis,
        Outcome calldata outcome,
        bytes calldata signature
    ) external {
        bytes32 digest = _digest(ledger, _sealHash(basis, outcome));
        if (!proofs.disproved(digest)) revert NotDisproved(digest);
        _slash(ledger, basis.run, _signer(digest, signature), digest);
    }

    /// @dev Once an account and run: all that is at stake goes, and it locks nothing there again.
    function _slash(address ledger, bytes32 run, address account, bytes32 offence) private {
        Bond storage bond = _bondOf(ledger, run, account);
        uint256 amount = uint256(bond.locked) + bond.unbonding;
        if (amount == 0) revert NothingAtStake(account);
        (bond.locked, bond.unbonding, bond.slashed) = (0, 0, true);
        uint256 reward = amount / REWARD_PARTS;
        emit Slashed(ledger, run, account, amount, reward, msg.sender, offence);
        _pay(BURNT, amount - reward);
        if (reward != 0) _pay(msg.sender, reward);
    }

    /// @dev With what unbonded by now among what is free.
    function _bondOf(address ledger, bytes32 run, address account) private returns (Bond storage bond) {
        bond = _bonds[ledger][run][account];
        if (bond.unbonding != 0 && block.timestamp >= bond.freeAt) {
            bond.free += bond.unbonding;
            bond.unbonding = 0;
        }
    }

    // slither-disable-next-line arbitrary-send-eth: it pays the caller, and burns the rest
    function _pay(address to, uint256 amount) private {
        (bool paid,) = to.call{value: amount}("");
        if (!paid) revert NotPaid(to);
    }

    // -------------------------------------------------------------------------------------------- typed messages

    function _digest(address ledger, bytes32 structHash) private view returns (bytes32) {
        bytes32 domain = keccak256(abi.encode(DOMAIN_TYPEHASH, LEDGER_NAME, LEDGER_VERSION, block.chainid, ledger));
        return keccak256(abi.encodePacked(hex"1901", domain, structHash));
    }

    function _sealHash(SealBasis calldata b, Outcome calldata outcome) private pure returns (bytes32) {
        return keccak256(abi.encode(Seals.TYPEHASH, b.run, b.stage, b.round, b.previous, outcome, b.records));
    }

    /// @dev The contribution that a statement makes. Words go in as they are: no node signs one that is out of range.
    function _contributionHash(bytes calldata statement, bytes32 name) private pure returns (bytes32) {
        return keccak256(
            abi.encode(
                Seals.CONTRIBUTION_TYPEHASH,
                _word(statement, 0), // run
                _word(statement, 1), // round
                _word(statement, 2), // stage
                _word(statement, 3), // replica
                name,
                _word(statement, 11), // loss
                _word(statement, 10), // inner steps
                _exchange(_word(statement, 24), _word(statement, 25))
            )
        );
    }

    /// @dev Percent of the computing time, halves rounded up, 1 to 255; 0: not measured. Both are uint32, in ms.
    function _exchange(uint256 compute, uint256 exchange) private pure returns (uint256 percent) {
        if (compute > type(uint32).max || exchange > type(uint32).max) revert InvalidStatement();
        if (compute == 0 || exchange == 0) return 0;
        percent = (200 * exchange + compute) / (2 * compute);
        if (percent == 0) return 1;
        return percent > 255 ? 255 : percent;
    }

    function _name(bytes calldata statement) private pure returns (bytes32) {
        if (statement.length != STATEMENT_BYTES) revert InvalidStatement();
        return sha256(statement);
    }

    function _word(bytes calldata statement, uint256 index) private pure returns (uint256) {
        return uint256(bytes32(statement[32 * index:32 * index + 32]));
    }

    /// @dev Whether words `from` to `to`, that one not included, are the same.
    function _same(bytes calldata a, bytes calldata b, uint256 from, uint256 to) private pure returns (bool) {
        return keccak256(a[32 * from:32 * to]) == keccak256(b[32 * from:32 * to]);
    }

    /// @dev Whoever signed it; a signature has one form (Seals.signer).
    function _signer(bytes32 digest, bytes calldata signature) private pure returns (address account) {
        if (signature.length != 65) revert SignatureMissing();
        account = signature.signer(0, digest);
        if (account == address(0)) revert SignatureMissing();
    }

    function _requireSigned(bytes32 digest, bytes calldata signature, address account) private pure {
        if (_signer(digest, signature) != account) revert SignatureMissing();
    }
}
