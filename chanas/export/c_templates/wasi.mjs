// Runs a WebAssembly program (WASI preview 1) with node, version 20 or later:
//
//     node --no-warnings wasi.mjs PROGRAM OPTIONS FILES...
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { WASI } from "node:wasi";

const [program, ...words] = process.argv.slice(2);
const args = words.map((word) => (word.startsWith("-") ? word : resolve(word))); // files: a program knows no folder
const preopens = { "/": "/" };
const wasi = new WASI({ version: "preview1", args: [program, ...args], preopens, returnOnExit: true });
const { instance } = await WebAssembly.instantiate(readFileSync(program), wasi.getImportObject());
process.exitCode = wasi.start(instance);
