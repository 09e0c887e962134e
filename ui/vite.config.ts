import { defineConfig } from "vite";

// Airflow's page has these already, as globals: the bundle is this package's own code and nothing else.
const globals = {
  react: "React",
  "react-dom": "ReactDOM",
  "react/jsx-runtime": "ReactJSXRuntime",
  "react-router-dom": "ReactRouterDOM",
  "@chakra-ui/react": "ChakraUI",
  "@emotion/react": "EmotionReact",
};

export default defineConfig({
  define: { "process.env.NODE_ENV": '"production"' },
  build: {
    outDir: "../airflow_gpu_provider/plugins/static",
    emptyOutDir: true,
    lib: { entry: "src/main.tsx", name: "AirflowPlugin", formats: ["umd"], fileName: () => "gpu-pools.js" },
    rollupOptions: { external: Object.keys(globals), output: { globals, exports: "default" } },
  },
});
