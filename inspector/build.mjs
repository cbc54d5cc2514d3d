// Build the inspector into the Python package: `node build.mjs [FOLDER] [--watch]`.
import { build, context } from "esbuild";
import { copyFile, mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const isWatching = process.argv.includes("--watch");
const given = process.argv.slice(2).find((argument) => !argument.startsWith("--"));
const folder = given ?? here("../src/whyloop/inspector/static");

const options = {
  absWorkingDir: here("."),
  entryPoints: { inspector: "src/main.tsx", chat: "src/chat.tsx", worker: "src/worker.ts" },
  outdir: folder,
  bundle: true,
  minify: !isWatching,
  format: "esm",
  target: ["es2022"],
  legalComments: "eof",
  logLevel: "warning",
};

await mkdir(folder, { recursive: true });
await copyFile(here("src/index.html"), `${folder}/index.html`);
if (isWatching) await (await context(options)).watch();
else await build(options);
