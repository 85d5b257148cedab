// Runs the contracts' tests, prints what they cover of src/, and fails where that is below the floor.
import { spawnSync } from "node:child_process";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const HERE = dirname(fileURLToPath(import.meta.url));
const FLOOR = { lines: 95, branches: 90 }; // percent

function fail(line) {
  console.error(`contracts: ${line}`);
  process.exit(1);
}

// What judges elements is tried against numpy by Python's tests (tests/contracts), not by forge's.
const ELSEWHERE = "^test/|node_modules/|src/(OuterProofs|Payloads|Openings|SoftFloat)\\.sol";
// Without --ir-minimum the instrumented code runs out of stack.
const options = ["--offline", "--ir-minimum", "--report", "summary", "--no-match-coverage", ELSEWHERE];
const forge = spawnSync(join(HERE, "node_modules/.bin/forge"), ["coverage", ...options], {
  cwd: HERE,
  encoding: "utf8",
  maxBuffer: 2 ** 26,
});
if (forge.error) fail(`${forge.error.message}; run \`npm ci\` in contracts/`);
const rows = forge.stdout.split("\n").filter((line) => /^\| (File |src\/|Total )/.test(line));
const total = rows.find((row) => row.startsWith("| Total "));
if (forge.status !== 0 || !total) {
  // Where code does not compile, forge ends with 0 all the same.
  process.stdout.write(forge.stdout);
  process.stderr.write(forge.stderr);
  fail("forge coverage failed");
}
console.log(rows.join("\n"));
const [lines, , branches] = [...total.matchAll(/([\d.]+)%/g)].map((match) => Number(match[1]));
if (!(lines >= FLOOR.lines && branches >= FLOOR.branches)) {
  const wanted = `${FLOOR.lines}% and ${FLOOR.branches}%`;
  fail(`the tests cover ${lines}% of lines and ${branches}% of branches; at least ${wanted} are wanted`);
}
