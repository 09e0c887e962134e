// Which pool is which: pools of two clusters, or of two accounts, may have one name. And whose buttons a pool has.

/** `cluster` is the pool's kind, connection, region and cluster in one text; null where a record does not have it. */
export type PoolId = { name: string; cluster: string | null };

export const keyOf = ({ name, cluster }: PoolId) => JSON.stringify([name, cluster]);

type Spec = Record<string, unknown>;

const CLUSTER: Record<string, (spec: Spec) => unknown[]> = {
  eks: (spec) => [spec.aws_conn_id, spec.region, spec.cluster_name],
  gke: (spec) => [spec.gcp_conn_id, [spec.impersonation_chain ?? []].flat().join(","), spec.project_id, spec.location, spec.cluster_name],
  kubernetes: (spec) => [spec.kubernetes_conn_id, spec.cluster_context ?? ""],
};

/** The cluster of a spec that `GpuPool.serialize` wrote, as `GpuPool.cluster_identity` has it; null if it lacks a field. */
export function clusterOf(spec: Spec): string | null {
  const parts = CLUSTER[String(spec.kind)]?.(spec);
  if (!parts || parts.includes(undefined)) return null;
  return [spec.kind, ...parts.map((part) => part ?? "None")].join("/");
}

/** The pool that a record without a cluster means: the only known one of its name. */
export function meant(pool: PoolId, known: readonly PoolId[]): PoolId {
  if (pool.cluster !== null) return pool;
  const named = new Map(known.filter((each) => each.name === pool.name && each.cluster !== null).map((each) => [keyOf(each), each]));
  return named.size === 1 ? [...named.values()][0]! : pool;
}

/** Each pool once, by name and cluster. */
export const once = (pools: readonly PoolId[]): PoolId[] =>
  [...new Map(pools.map((pool) => [keyOf(pool), pool])).values()].sort((one, other) => keyOf(one).localeCompare(keyOf(other)));

/** A pool's name, with its cluster where others have the name too. */
export const titleOf = (pool: PoolId, shown: readonly PoolId[]) =>
  shown.filter((each) => each.name === pool.name).length > 1 ? `${pool.name} (${pool.cluster ?? "cluster unknown"})` : pool.name;

/** The DAG of each pool that the first of the records has, which are the newest first. */
export function dagsOf(records: readonly { dagId: string; pools: readonly PoolId[] }[]): Map<string, string> {
  const found = new Map<string, string>();
  for (const { dagId, pools } of records) {
    for (const pool of pools) if (pool.cluster !== null && !found.has(keyOf(pool))) found.set(keyOf(pool), dagId);
  }
  return found;
}
