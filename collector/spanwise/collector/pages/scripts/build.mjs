// Bundles the scripts of the pages into ../bundle, with the licence texts of the packages in them: npm run build
import { build } from "esbuild";
import { existsSync, mkdirSync, readFileSync, readdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const sources = dirname(fileURLToPath(import.meta.url));
const target = join(sources, "..", "bundle"), unfinished = `${target}-${process.pid}`;
const entries = ["spanwise.ts", "list.ts", "overview.ts", "trace.ts"]; // one script per kind of page

/** The folder of the npm package that a bundled file is from; null for our own. */
function packageOf(file) {
  const [, name] = file.match(/.*node_modules\/((?:@[^/]+\/)?[^/]+)\//) ?? [];
  return name ? { name, folder: file.slice(0, file.lastIndexOf(`node_modules/${name}/`) + `node_modules/${name}`.length) } : null;
}

rmSync(unfinished, { recursive: true, force: true });
mkdirSync(unfinished);
const result = await build({
  entryPoints: entries.map((name) => join(sources, name)),
  outdir: unfinished,
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none", // the texts are in licenses.txt
  metafile: true,
  absWorkingDir: process.cwd(),
});

const packages = new Map();
for (const file of Object.keys(result.metafile.inputs)) {
  const found = packageOf(file);
  if (found) packages.set(found.name, found.folder);
}
const texts = [...packages].sort().map(([name, folder]) => {
  const license = readdirSync(folder).find((file) => /^licen[cs]e/i.test(file));
  if (!license) throw new Error(`the package ${name} has no licence text`);
  const { version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  return `${name} ${version}\n\n${readFileSync(join(folder, license), "utf8").trim()}\n`;
});
writeFileSync(join(unfinished, "licenses.txt"), texts.join(`\n${"-".repeat(80)}\n\n`));
if (existsSync(target)) rmSync(target, { recursive: true });
renameSync(unfinished, target);
