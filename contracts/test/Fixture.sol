// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IBonds, IInvitations, ILedger} from "../src/ILedger.sol";
import {NodeRegistry} from "../src/NodeRegistry.sol";
import {Activity, Member, RunConfig} from "../src/Runs.sol";
import {Outcome, Seal} from "../src/Seals.sol";
import {TrainingLedger} from "../src/TrainingLedger.sol";
import {Weights} from "../src/Weights.sol";
import {BondsDouble, InvitationsDouble} from "./Doubles.sol";
import {vm, Vm} from "./Vm.sol";

bytes32 constant SEAL_TYPEHASH = keccak256(
    "Seal(bytes32 run,uint16 stage,uint32 round,bytes32 previous,bytes32 weights,bytes32 momentum,bytes32 weightsRoot,bytes32 momentumRoot,bytes11 plans,bytes records)"
);
bytes32 constant CONTRIBUTION_TYPEHASH = keccak256(
    "Contribution(bytes32 run,uint32 round,uint16 stage,uint16 replica,bytes32 statement,uint32 loss,uint32 innerSteps,uint8 exchange)"
);

bytes32 constant VERDICT_TYPEHASH = keccak256(
    "Verdict(bytes32 run,uint16 stage,uint32 round,address account,bytes32 statement,uint8 finding,bytes32 report)"
);

bytes32 constant SITE_TYPEHASH = keccak256("SiteMember(bytes32 run,address account)");

/// @dev Whose contribution a verdict is about, and to what.
struct Charge {
    bytes32 run;
    uint16 stage;
    uint32 round;
    address account;
    bytes32 statement;
}

/// @dev What an account's node says about its round.
struct Work {
    address account;
    uint16 stage;
    uint32 round;
    uint16 replica;
    bytes32 statement;
    uint32 loss;
    uint32 innerSteps;
    uint8 exchange;
    uint16 multiplier;
}

/// @dev A registry, a ledger, registered accounts in ascending order, and what their nodes do off-chain. The founder has
/// no node and no slot; it signs what it is asked to.
abstract contract Fixture {
    uint32 internal constant MIN_ROUND_TIME = 10;
    uint32 internal constant ROUND_TIMEOUT = 600;
    uint32 internal constant EVICTION_TIME = 120;
    uint64 internal constant TOKENS_PER_STEP = 4096;
    uint32 internal constant INNER_STEPS = 50;
    uint16 internal constant ANY = type(uint16).max;
    uint16 internal constant HORIZON = 8;
    uint256 internal constant UNIT = Weights.FULL / HORIZON;
    address internal constant CREATOR = address(0xc4ea7e);
    string internal constant NAME = "a-run";

    NodeRegistry internal registry;
    InvitationsDouble internal invitations;
    BondsDouble internal bonds;
    TrainingLedger internal ledger;
    address internal founder;
    address[] internal who; // ascending
    mapping(address => uint256) internal keyOf;

    constructor() {
        vm.warp(1_800_000_000);
        vm.roll(1000);
        registry = new NodeRegistry();
        (invitations, bonds) = (new InvitationsDouble(), new BondsDouble());
        ledger = new TrainingLedger(registry, IInvitations(address(invitations)), IBonds(address(bonds)));
        founder = vm.addr(0xf0de2);
        keyOf[founder] = 0xf0de2;
    }

    // ------------------------------------------------------------------------------------------- accounts, runs

    /// @dev Registers `count` accounts and puts them into `who`.
    function enrol(uint256 count) internal {
        for (uint256 i = 0; i < count; ++i) {
            address account = vm.addr(0xacc0 + i);
            keyOf[account] = 0xacc0 + i;
            register(account, 0x90de0 + i);
            who.push(account);
            for (uint256 j = who.length - 1; j > 0 && who[j] < who[j - 1]; --j) {
                (who[j], who[j - 1]) = (who[j - 1], who[j]);
            }
        }
    }

    /// @dev Further accounts, behind those that are there.
    function enrolMore(uint256 count) internal {
        for (uint256 i = 0; i < count; ++i) {
            uint256 key = 0xbcc0 + who.length;
            keyOf[vm.addr(key)] = key;
            register(vm.addr(key), 0x80de0 + who.length);
            who.push(vm.addr(key));
        }
    }

    function register(address account, uint256 nodeKey) internal {
        Vm.Wallet memory node = vm.createWallet(nodeKey);
        bytes32 registration =
            keccak256(abi.encode(registry.REGISTRATION_TYPEHASH(), account, registry.nonces(account)));
        (uint8 v, bytes32 r, bytes32 s) =
            vm.sign(nodeKey, digestIn("dlx-node NodeRegistry", "1", address(registry), registration));
        vm.prank(account);
        registry.register(
            bytes32(node.publicKeyX), bytes32(node.publicKeyY), abi.encodePacked(r, s, v), new string[](0)
        );
    }

    function configOf(uint16 stages, uint16 minReplicas, uint16 maxReplicas) internal pure returns (RunConfig memory) {
        return RunConfig({
            manifest: keccak256("manifest"),
            rounds: 200,
            stages: stages,
            minReplicas: minReplicas,
            maxReplicas: maxReplicas,
            quorumNumerator: 2,
            quorumDenominator: 3,
            horizon: HORIZON,
            minRoundTime: MIN_ROUND_TIME,
            roundTimeout: ROUND_TIMEOUT,
            evictionTime: EVICTION_TIME,
            maxInnerSteps: 2 * INNER_STEPS,
            startTime: 0,
            tokensPerStep: TOKENS_PER_STEP,
            invited: false,
            bond: 0,
            outer: 0
        });
    }

    function genesisOf(uint256 stages) internal pure returns (bytes32[] memory hashes) {
        hashes = new bytes32[](stages);
        for (uint256 stage = 0; stage < stages; ++stage) {
            hashes[stage] = keccak256(abi.encode("genesis", stage));
        }
    }

    function create(RunConfig memory config) internal returns (bytes32) {
        vm.prank(CREATOR);
        return ledger.createRun(config, NAME, genesisOf(config.stages), some(founder));
    }

    function join(bytes32 run, address account, uint16 stage) internal {
        vm.prank(account);
        ledger.joinRun(run, stage);
    }

    /// @dev That the key `site` names the account.
    function named(bytes32 run, address account, uint256 site) internal view returns (bytes memory) {
        bytes32 hash = keccak256(abi.encode(SITE_TYPEHASH, run, account));
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(site, digestIn("dlx-node TrainingLedger", "3", address(ledger), hash));
        return abi.encodePacked(r, s, v);
    }

    function enlist(bytes32 run, address account, uint256 site) internal {
        bytes memory signature = named(run, account, site);
        vm.prank(account);
        ledger.enlist(run, ANY, uint40(vm.getBlockTimestamp() + 3600), signature);
    }

    function requireSlot(bytes32 run, address account, uint16 replica, uint16 stage) internal view {
        Member memory member = ledger.memberOf(run, account);
        vm.assertTrue(member.holds);
        vm.assertEq(member.replica, replica, "replica");
        vm.assertEq(member.stage, stage, "stage");
        vm.assertEq(ledger.holderOf(run, replica, stage), account);
    }

    // ------------------------------------------------------------------------------------------- typed messages

    function digestIn(string memory name, string memory version, address verifier, bytes32 structHash) internal view returns (bytes32) {
        bytes32 domain = keccak256(
            abi.encode(
                keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"),
                keccak256(bytes(name)),
                keccak256(bytes(version)),
                block.chainid,
                verifier
            )
        );
        return keccak256(abi.encodePacked(hex"1901", domain, structHash));
    }

    function digestOf(Seal memory s) internal view returns (bytes32) {
        bytes32 records = keccak256(s.records);
        bytes32 hash = keccak256(
            abi.encode(SEAL_TYPEHASH, s.run, s.stage, s.round, ledger.head(s.run, s.stage), s.outcome, records)
        );
        return digestIn("dlx-node TrainingLedger", "3", address(ledger), hash);
    }

    function digestOf(bytes32 run, Work memory w) internal view returns (bytes32) {
        bytes memory words = abi.encode(
            CONTRIBUTION_TYPEHASH, run, w.round, w.stage, w.replica, w.statement, w.loss, w.innerSteps, w.exchange
        );
        return digestIn("dlx-node TrainingLedger", "3", address(ledger), keccak256(words));
    }

    function digestOf(Charge memory c, uint8 finding, bytes32 report) internal view returns (bytes32) {
        return digestIn("dlx-node TrainingLedger", "3", address(ledger), keccak256(abi.encode(VERDICT_TYPEHASH, c, finding, report)));
    }

    function sign(address account, bytes32 digest) internal view returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(keyOf[account], digest);
        return abi.encodePacked(r, s, v);
    }

    // -------------------------------------------------------------------------------------- contributions, seals

    /// @dev What `account` states for its slot in its stage's next round.
    function workOf(bytes32 run, address account) internal view returns (Work memory w) {
        Member memory member = ledger.memberOf(run, account);
        w.account = account;
        (w.replica, w.stage) = (member.replica, member.stage);
        w.round = ledger.nextRound(run, w.stage);
        w.statement = keccak256(abi.encode("statement", account, w.round));
        w.loss = 3_000_000 + uint32(uint160(account) % 1_000_000);
        w.innerSteps = INNER_STEPS;
        w.exchange = 40;
        w.multiplier = 32768;
    }

    /// @dev Of all these accounts, in ascending order of replica.
    function worksOf(bytes32 run, address[] memory accounts) internal view returns (Work[] memory works) {
        works = new Work[](accounts.length);
        for (uint256 i = 0; i < accounts.length; ++i) {
            works[i] = workOf(run, accounts[i]);
            for (uint256 j = i; j > 0 && works[j].replica < works[j - 1].replica; --j) {
                (works[j], works[j - 1]) = (works[j - 1], works[j]);
            }
        }
    }

    function recordOf(Work memory w) internal pure returns (bytes memory) {
        return abi.encodePacked(
            uint8(w.replica), w.statement, w.loss, w.innerSteps, w.exchange, w.multiplier
        );
    }

    function plansOf(uint32 innerSteps, uint32 nextInnerSteps) internal pure returns (bytes11) {
        return bytes11(abi.encodePacked(innerSteps, uint8(4), uint16(0), nextInnerSteps));
    }

    /// @dev The seal of the stage's next round over these works, without signatures.
    function sealOf(bytes32 run, uint16 stage, Work[] memory works) internal view returns (Seal memory s) {
        (s.run, s.stage, s.round) = (run, stage, ledger.nextRound(run, stage));
        s.outcome = Outcome(0, 0, 0, 0, plansOf(INNER_STEPS, INNER_STEPS));
        if (works.length > 0) {
            s.outcome.weights = keccak256(abi.encode("weights", stage, s.round + 1));
            s.outcome.weightsRoot = keccak256(abi.encode("root", stage, s.round + 1));
        }
        for (uint256 i = 0; i < works.length; ++i) {
            s.records = bytes.concat(s.records, recordOf(works[i]));
        }
    }

    /// @dev Adds the signers' signatures, and those of the works' makers who are not among them.
    function signedBy(Seal memory s, Work[] memory works, address[] memory signers) internal view returns (Seal memory) {
        bytes32 digest = digestOf(s);
        bool[] memory covered = new bool[](works.length);
        for (uint256 i = 0; i < signers.length; ++i) {
            uint256 replica = signers[i] == founder ? 192 : ledger.memberOf(s.run, signers[i]).replica;
            for (uint256 j = 0; j < works.length; ++j) {
                if (works[j].account == signers[i]) (replica, covered[j]) = (works[j].replica, true);
            }
            s.signatures = bytes.concat(s.signatures, bytes1(uint8(replica)), sign(signers[i], digest));
        }
        for (uint256 j = 0; j < works.length; ++j) {
            if (covered[j]) continue;
            bytes memory signature = sign(works[j].account, digestOf(s.run, works[j]));
            s.signatures = bytes.concat(s.signatures, bytes1(uint8(128 + works[j].replica)), signature);
        }
        return s;
    }

    function sealBy(bytes32 run, uint16 stage, address[] memory makers, address[] memory signers)
        internal
        view
        returns (Seal memory)
    {
        Work[] memory works = worksOf(run, makers);
        return signedBy(sealOf(run, stage, works), works, signers);
    }

    /// @dev Seals the stage's next round with these contributors, all of whom sign, once its minimum time is over; and
    /// the founder, as long as there is need of it.
    function sealWith(bytes32 run, uint16 stage, address[] memory accounts) internal {
        sealSignedBy(run, stage, accounts, vacuumOf(run, stage) == 0 ? accounts : founded(accounts));
    }

    function sealSignedBy(bytes32 run, uint16 stage, address[] memory makers, address[] memory signers) internal {
        Seal memory s = sealBy(run, stage, makers, signers);
        pass(MIN_ROUND_TIME);
        ledger.seal(s);
    }

    /// @dev An empty seal, once the round has timed out.
    function sealNothing(bytes32 run, uint16 stage, address[] memory signers) internal {
        Seal memory s = sealBy(run, stage, none(), signers);
        expire(run);
        ledger.seal(s);
    }

    /// @dev Gives the stage weight of its own: these work in so many rounds, with the founder's help.
    function work(bytes32 run, uint16 stage, address[] memory accounts, uint256 rounds) internal {
        for (uint256 k = 0; k < rounds; ++k) sealWith(run, stage, accounts);
    }

    function refused(Seal memory s, bytes memory why) internal {
        vm.expectRevert(why);
        ledger.seal(s);
    }

    function refused(Seal memory s, uint256 votes, uint256 needed) internal {
        refused(s, abi.encodeWithSelector(ILedger.QuorumMissing.selector, votes, needed));
    }

    /// @dev What the seal has and needs, which is more.
    function missing(Seal memory s) internal returns (uint256 votes, uint256 needed) {
        (bool done, bytes memory why) = address(ledger).call(abi.encodeCall(ledger.seal, (s)));
        vm.assertFalse(done);
        vm.assertEq(bytes32(bytes4(why)), bytes32(ILedger.QuorumMissing.selector));
        assembly ("memory-safe") {
            votes := mload(add(why, 36))
            needed := mload(add(why, 68))
        }
    }

    // -------------------------------------------------------------------------------------------------- weights

    function vacuumOf(bytes32 run, uint16 stage) internal view returns (uint256 vacuum) {
        (,,, vacuum) = ledger.weightsOf(run, stage);
    }

    /// @dev Of all that seals of the stage count: its members', the absent's, and the founders'.
    function totalOf(bytes32 run, uint16 stage) internal view returns (uint256) {
        (uint256 held, uint256 absent,, uint256 vacuum) = ledger.weightsOf(run, stage);
        return held + absent + vacuum;
    }

    function weightOf(bytes32 run, address[] memory accounts) internal view returns (uint256 weight) {
        for (uint256 i = 0; i < accounts.length; ++i) weight += ledger.weightOf(run, accounts[i]);
    }

    function laneOf(bytes32 run, address account) internal view returns (uint256) {
        Member memory member = ledger.memberOf(run, account);
        (, uint256[8] memory words) = ledger.stageOf(run, member.stage);
        return Weights.lane(words[member.lane / 8], member.lane);
    }

    function activityOf(bytes32 run, uint16 stage) internal view returns (Activity memory activity) {
        (activity,) = ledger.stageOf(run, stage);
    }

    // ------------------------------------------------------------------------------------------------- verdicts

    /// @dev That the account's work of the round was not what it says.
    function charge(bytes32 run, uint16 stage, uint32 round, address account) internal pure returns (Charge memory) {
        return Charge(run, stage, round, account, keccak256(abi.encode("statement", account, round)));
    }

    /// @dev The signers' verdicts on it, with a report each.
    function found(Charge memory c, uint8 finding, address[] memory signers) internal view returns (bytes memory entries) {
        for (uint256 i = 0; i < signers.length; ++i) {
            bytes32 report = keccak256(abi.encode("report", signers[i]));
            entries = bytes.concat(entries, bytes1(finding), report, sign(signers[i], digestOf(c, finding, report)));
        }
    }

    function convictCall(Charge memory c, bytes memory entries) internal pure returns (bytes memory) {
        return abi.encodeCall(TrainingLedger.convict, (c.run, c.stage, c.round, c.account, c.statement, entries));
    }

    function convict(Charge memory c, address[] memory signers) internal {
        ledger.convict(c.run, c.stage, c.round, c.account, c.statement, found(c, 2, signers));
    }

    // ------------------------------------------------------------------------------------------- what anybody does

    function quit(bytes32 run, address account) internal {
        vm.prank(account);
        ledger.leaveRun(run);
    }

    function ask(bytes32 run, address by, address account) internal {
        vm.prank(by);
        ledger.accuse(run, account);
    }

    function tryAsk(bytes32 run, address by, address account) internal returns (bool asked) {
        vm.prank(by);
        (asked,) = address(ledger).call(abi.encodeCall(ledger.accuse, (run, account)));
    }

    function reply(bytes32 run, address account) internal {
        vm.prank(account);
        ledger.answer(run);
    }

    /// @dev Until the open round has just timed out.
    function expire(bytes32 run) internal {
        (,, uint64 openedAt) = ledger.openRound(run);
        if (vm.getBlockTimestamp() < openedAt + ROUND_TIMEOUT) vm.warp(openedAt + ROUND_TIMEOUT);
    }

    function pass(uint256 time) internal {
        vm.warp(vm.getBlockTimestamp() + time); // the optimizer takes block.timestamp for constant
    }

    function some(address a) internal pure returns (address[] memory list) {
        list = new address[](1);
        list[0] = a;
    }

    function some(address a, address b) internal pure returns (address[] memory list) {
        list = new address[](2);
        (list[0], list[1]) = (a, b);
    }

    function some(address a, address b, address c) internal pure returns (address[] memory list) {
        list = new address[](3);
        (list[0], list[1], list[2]) = (a, b, c);
    }

    function part(uint256 from, uint256 to) internal view returns (address[] memory list) {
        list = new address[](to - from);
        for (uint256 i = from; i < to; ++i) list[i - from] = who[i];
    }

    function joined(address[] memory a, address[] memory b) internal pure returns (address[] memory list) {
        list = new address[](a.length + b.length);
        for (uint256 i = 0; i < list.length; ++i) list[i] = i < a.length ? a[i] : b[i - a.length];
    }

    /// @dev These, and the founder.
    function founded(address[] memory accounts) internal view returns (address[] memory) {
        return joined(accounts, some(founder));
    }

    function none() internal pure returns (address[] memory) {
        return new address[](0);
    }
}
