// A block every fifth of a second, as anvil is started in tests; nothing is compiled here.
module.exports = {
  solidity: "0.8.28",
  networks: { hardhat: { chainId: 31337, hardfork: "cancun", mining: { auto: false, interval: 200 } } },
};
