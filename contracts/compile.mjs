// Compiles the contracts with the pinned solc-js and writes artifacts/*.json, byte for byte the same everywhere.
// `--check` writes nothing and fails if the committed artifacts differ from what the sources give.
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const require = createRequire(import.meta.url);
const HERE = dirname(fileURLToPath(import.meta.url));
const CONTRACTS = ["NodeRegistry", "Invitations", "OuterProofs", "Bonds", "TrainingLedger", "Campaigns", "PayToken"]; // and libraries
const SIZE_LIMIT = 24576; // EIP-170
const SETTINGS = {
  evmVersion: "cancun",
  optimizer: { enabled: true, runs: 500 },
  viaIR: true,
  metadata: { bytecodeHash: "none" },
  outputSelection: { "*": { "*": ["abi", "evm.bytecode", "evm.deployedBytecode"] } },
};

function fail(line) {
  console.error(`contracts: ${line}`);
  process.exit(1);
}

function load() {
  try {
    return require("./cached-solc.cjs");
  } catch {
    fail("solc is not installed; run `npm ci` in contracts/");
  }
}

// OpenZeppelin's guard uses transient storage and clears it, which is what the compiler warns to see to.
function isKnown({ errorCode, sourceLocation }) {
  return errorCode === "2394" && sourceLocation.file.startsWith("@openzeppelin/");
}

function compile(solc) {
  const names = readdirSync(join(HERE, "src")).filter((name) => name.endsWith(".sol")).sort();
  const sources = Object.fromEntries(
    names.map((name) => [`src/${name}`, { content: readFileSync(join(HERE, "src", name), "utf8") }]),
  );
  const findImport = (path) => ({ contents: readFileSync(join(HERE, "node_modules", path), "utf8") });
  const input = { language: "Solidity", sources, settings: SETTINGS };
  const output = JSON.parse(solc.compile(JSON.stringify(input), { import: findImport }));
  const problems = (output.errors ?? []).filter((problem) => !isKnown(problem));
  for (const problem of problems) console.error(problem.formattedMessage);
  if (problems.length) fail("the sources do not compile without errors and warnings");
  return output.contracts;
}

// By library: where its address stands in the code, in order.
function links({ linkReferences }) {
  const found = Object.values(linkReferences ?? {}).flatMap((byName) => Object.entries(byName));
  return Object.fromEntries(found.sort().map(([name, at]) => [name, at.map((one) => one.start).sort((a, b) => a - b)]));
}

// With zeros in the places of libraries, as in those of immutables.
function hex({ object }) {
  return `0x${object.replace(/__\$[0-9a-f]{34}\$__/g, "0".repeat(40))}`;
}

// The contracts, each after the libraries that it links.
function linked(compiled, names) {
  const all = names.flatMap((name) => {
    const { bytecode } = compiled[`src/${name}.sol`][name].evm;
    return [...linked(compiled, Object.keys(links(bytecode))), name];
  });
  return [...new Set(all)];
}

function artifact(solc, contractName, { abi, evm }) {
  const size = evm.deployedBytecode.object.length / 2;
  if (size > SIZE_LIMIT) fail(`${contractName} has ${size} bytes of code, above the limit of ${SIZE_LIMIT}`);
  const places = Object.values(evm.deployedBytecode.immutableReferences ?? {}).flat();
  return {
    contractName,
    compiler: `solc ${solc.version()}`,
    abi,
    bytecode: hex(evm.bytecode),
    deployedBytecode: hex(evm.deployedBytecode),
    // Where constructor-time values stand in the deployed code, in order; whoever compares code masks these bytes.
    immutableReferences: places.sort((a, b) => a.start - b.start),
    // Where the addresses of libraries stand, 20 bytes each, by library: in the creation's code and in the deployed one.
    links: links(evm.bytecode),
    deployedLinks: links(evm.deployedBytecode),
  };
}

const check = process.argv.includes("--check");
const solc = load();
const compiled = compile(solc);
for (const name of linked(compiled, CONTRACTS)) {
  const path = join(HERE, "artifacts", `${name}.json`);
  const text = `${JSON.stringify(artifact(solc, name, compiled[`src/${name}.sol`][name]), null, 2)}\n`;
  if (!check) {
    writeFileSync(path, text);
    continue;
  }
  let committed = "";
  try {
    committed = readFileSync(path, "utf8");
  } catch {
    fail(`artifacts/${name}.json is missing; run \`make contracts\` and commit the result`);
  }
  if (committed !== text) fail(`artifacts/${name}.json differs from the sources; run \`make contracts\` and commit it`);
}
