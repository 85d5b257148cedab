// Runs the contracts' tests. Where code does not compile, forge ends with 0 all the same: only its last line tells.
import { spawnSync } from "node:child_process";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const HERE = dirname(fileURLToPath(import.meta.url));
const options = ["test", "--offline", ...process.argv.slice(2)];
const forge = spawnSync(join(HERE, "node_modules/.bin/forge"), options, {
  cwd: HERE,
  encoding: "utf8",
  maxBuffer: 2 ** 26,
  stdio: ["ignore", "pipe", "inherit"],
});
if (forge.error) {
  console.error(`contracts: ${forge.error.message}; run \`npm ci\` in contracts/`);
  process.exit(1);
}
process.stdout.write(forge.stdout);
if (forge.status !== 0 || !/\b[1-9]\d* tests? passed, 0 failed/.test(forge.stdout)) {
  console.error("contracts: forge test failed");
  process.exit(1);
}
