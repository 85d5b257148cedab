// The pinned solc-js from npm, which does not compile again what it has compiled before: minutes with the tests. Results
// lie in the user's cache folder, by the hash of the input and of package-lock.json, which pins compiler and libraries.
const { createHash } = require("node:crypto");
const { mkdirSync, readFileSync, readdirSync, renameSync, rmSync, statSync, utimesSync, writeFileSync } = require("node:fs");
const { homedir } = require("node:os");
const { join } = require("node:path");
const { gunzipSync, gzipSync } = require("node:zlib");
const solc = require("solc");

const FOLDER = join(process.env.XDG_CACHE_HOME || join(homedir(), ".cache"), "dlx-node", "solc");
const KEPT = 16; // results, the newest

function kept(path) {
  try {
    const text = gunzipSync(readFileSync(path)).toString();
    utimesSync(path, new Date(), new Date());
    return text;
  } catch {
    return undefined; // none, or half of one
  }
}

function keep(path, text) {
  const part = `${path}.${process.pid}`;
  try {
    mkdirSync(FOLDER, { recursive: true });
    writeFileSync(part, gzipSync(text));
    renameSync(part, path);
    const age = (name) => -statSync(join(FOLDER, name)).mtimeMs;
    const results = readdirSync(FOLDER).map((name) => [age(name), name]).sort(([one], [other]) => one - other);
    for (const [, name] of results.slice(KEPT)) rmSync(join(FOLDER, name), { force: true });
  } catch {
    rmSync(part, { force: true }); // a cache that cannot be written is none
  }
}

// Of standard JSON, as `solc.compile`.
function compile(input, callbacks) {
  const lock = readFileSync(join(__dirname, "package-lock.json"));
  const key = createHash("sha256").update(lock).update("\0").update(input).digest("hex");
  const path = join(FOLDER, `${key}.json.gz`);
  const found = kept(path);
  if (found !== undefined) return found;
  const made = solc.compile(input, callbacks);
  keep(path, made);
  return made;
}

module.exports = { compile, version: solc.version };
