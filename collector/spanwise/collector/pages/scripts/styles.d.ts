// Style sheets of packages, which esbuild bundles.
declare module "*.css";
