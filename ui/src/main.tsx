// What Airflow's web UI loads: one component, which gets the place where it is shown.

import { Page } from "./page.tsx";
import { RunTab } from "./run-tab.tsx";

type Props = { dagId?: string; runId?: string };

const GpuPools = ({ dagId, runId }: Props) =>
  dagId && runId ? <RunTab key={`${dagId} ${runId}`} dagId={dagId} runId={runId} /> : <Page />;

// Airflow stores a plugin's component under its name, and runs a bundle once, although two names are loaded from it.
for (const name of ["GPU pools", "GPU nodes"]) Reflect.set(globalThis, name, GpuPools);

export default GpuPools;
