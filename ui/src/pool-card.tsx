// One pool: its state at the last check, what tasks have shown since, its machines, and the buttons.

import { Badge, Box, Heading, Table, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";

import { LookNow, MoreMoney, MoreTime, ZeroNow } from "./actions.tsx";
import { count, duration, moment, money, UNKNOWN } from "./format.ts";
import type { Now, PoolNow } from "./load.ts";
import { beginOf, type Night } from "./nights.ts";
import { keyOf, type PoolId } from "./pools.ts";
import { type Budget, type Hang, type Lease, type MachineNow, runOfLease, type Status, whyItStays } from "./records.ts";
import { type SeenStage, seenStage } from "./summary.ts";
import { endOf, inOrderOfBegin, type LiveRun } from "./tasks.ts";
import { Notice, NodesLink, RunLink, Sentence, TaskLink, Wide } from "./words.tsx";

type Props = {
  pool: PoolId;
  title: string;
  seen: PoolNow | undefined;
  live: LiveRun[];
  nights: readonly Night[];
  /** Why somebody has to look at it first; "" where nobody has to. */
  need: string;
  now: Now;
  reload: () => void;
};

/** A pool that is at zero and wants nobody's attention. */
export const PoolRow = ({ pool, title, seen, nights, now, reload }: Props) => {
  const last = nights.reduce<Night | null>((one, other) => (!one || beginOf(other) > beginOf(one) ? other : one), null);
  return (
    <Table.Row data-pool={pool.name} data-cluster={pool.cluster ?? ""}>
      <Table.Cell overflowWrap="anywhere">{title}</Table.Cell>
      <Table.Cell overflowWrap="anywhere">
        {last ? (
          <>
            <RunLink dagId={last.task.dag_id} runId={last.task.dag_run_id}>
              {moment(beginOf(last))}
            </RunLink>{" "}
            {last.red ? <Badge colorPalette="red">red</Badge> : null}
          </>
        ) : (
          "none in 30 days"
        )}
      </Table.Cell>
      <Table.Cell>{seen ? <Age seen={seen} now={now} /> : "not yet"}</Table.Cell>
      <Table.Cell>{seen ? <LookNow janitor={seen.task.dag_id} pool={pool.name} done={reload} /> : null}</Table.Cell>
    </Table.Row>
  );
};

const Age = ({ seen, now }: { seen: PoolNow; now: Now }) => (
  <>
    <TaskLink task={seen.task}>{moment(seen.at)}</TaskLink>{" "}
    {now.at - Date.parse(seen.at) > 2 * now.period ? <Badge colorPalette="orange">stale</Badge> : null}
  </>
);

export const PoolCard = ({ pool, title, seen, live, nights, need, now, reload }: Props) => {
  const extender = now.extenders.get(keyOf(pool)) ?? null;
  const newer = now.red.find((look) => seen && look.task.dag_id === seen.task.dag_id);
  return (
    <Box borderWidth={1} borderRadius="md" p={4} mt={3} data-pool={pool.name} data-cluster={pool.cluster ?? ""}>
      <Box display="flex" flexWrap="wrap" gap={3} alignItems="center">
        <Heading as="h3" size="sm" overflowWrap="anywhere">
          {title}
        </Heading>
        <Box flex={1} />
        {seen ? <LookNow janitor={seen.task.dag_id} pool={pool.name} done={reload} /> : null}
      </Box>
      {need ? <Notice status="error">{need}</Notice> : null}
      {seen ? <Counts status={seen.status} /> : null}
      {seen ? <AsOf seen={seen} now={now} /> : null}
      {newer && seen && newer.task.run_after > seen.task.run_after ? (
        <Notice status="warning">
          The last check failed, so this is what an earlier one saw: see <TaskLink task={newer.task} />.
        </Notice>
      ) : null}
      <Runs pool={pool} live={live} seen={seen} ended={endedSince(nights, seen)} extender={extender} reload={reload} />
      {seen ? <Machines status={seen.status} /> : null}
    </Box>
  );
};

const NO_EXTENDER =
  "There is no button for more time: no ExtendGpuPoolOperator with this pool in gpu_pools has run yet, as example_dags/extend_run.py has one.";

const known = (value: number | null) => (value === null ? UNKNOWN : String(value));

const Counts = ({ status }: { status: Status }) => (
  <Box display="flex" flexWrap="wrap" gap={6} my={2}>
    <Figure name="ready">{known(status.nodes)}</Figure>
    <Figure name="booting">{known(add(status.booting, status.launching))}</Figure>
    <Figure name="draining or broken">{known(status.out_of_use)}</Figure>
    <Figure name="wanted">{known(status.wanted)}</Figure>
    <Figure name="cost an hour">{money(status.cost_per_hour, status.currency)}</Figure>
  </Box>
);

const add = (one: number | null, other: number | null) => (one === null ? null : one + (other ?? 0));

const Figure = ({ name, children }: { name: string; children: ReactNode }) => (
  <Box>
    <Text fontSize="xl" fontWeight="semibold">
      {children}
    </Text>
    <Text fontSize="sm" color="fg.muted">
      {name}
    </Text>
  </Box>
);

const AsOf = ({ seen, now }: { seen: PoolNow; now: Now }) => {
  const age = now.at - Date.parse(seen.at);
  return (
    <>
      <Text fontSize="sm" color="fg.muted" overflowWrap="anywhere">
        As of <TaskLink task={seen.task}>{moment(seen.at)}</TaskLink>; {seen.status.where}
      </Text>
      {age > 2 * now.period ? (
        <Notice status="warning">
          This is stale: the last check was {duration(age / 1000)} ago, though one was due every{" "}
          {duration(now.period / 1000)}. Is the janitor&apos;s DAG paused?
        </Notice>
      ) : null}
    </>
  );
};

const PALETTE: Record<SeenStage, string> = {
  waiting: "gray",
  booting: "orange",
  working: "green",
  draining: "purple",
  "waiting for its pod": "orange",
  "not checked yet": "gray",
};

/** The nights whose scale-down has ended since the last check: what that check saw of them is outdated. */
function endedSince(nights: readonly Night[], seen: PoolNow | undefined): readonly Night[] {
  return seen ? nights.filter(({ task }) => task.state === "success" && endOf(task) > Date.parse(seen.at)) : [];
}

type RunRow = { dagId: string; runId: string; live: LiveRun | null; leases: Lease[]; name: string };

/** Whether a name is that of a run, or of a block or a task of it. */
const isOf = (run: string, name: string) => name === run || name.startsWith(`${run}/`);

/** Runs that want nodes, by their demand at the last check or by their tasks since: each once. */
function rowsOf(live: readonly LiveRun[], leases: readonly Lease[]): RunRow[] {
  const rows = live.map((run): RunRow => {
    const name = `${run.dagId}/${run.runId}`;
    const own = leases.filter((lease) => isOf(name, lease.run));
    return { dagId: run.dagId, runId: run.runId, live: run, leases: own, name };
  });
  const shown = new Set(rows.flatMap((row) => row.leases));
  const rest = leases.filter((lease) => !shown.has(lease));
  return [...rows, ...rest.map((lease): RunRow => {
    const run = runOfLease(lease.run);
    return { dagId: run?.dagId ?? "", runId: run?.runId ?? "", live: null, leases: [lease], name: lease.run };
  })];
}

type RunsProps = {
  pool: PoolId;
  live: LiveRun[];
  seen: PoolNow | undefined;
  ended: readonly Night[];
  extender: string | null;
  reload: () => void;
};

const Runs = ({ pool, live, seen, ended, extender, reload }: RunsProps) => {
  const rows = rowsOf(live, seen?.status.leases ?? []);
  if (!rows.length) {
    const others = seen && (seen.status.wanted ?? 0) > 0 ? seen.status.wanted_by : "";
    return <Sentence>{others ? `Wanted by ${others}.` : "No run wants nodes of this pool now."}</Sentence>;
  }
  return (
    <>
      <Wide>
        <Table.Root size="sm" variant="line" mt={2} style={{ tableLayout: "fixed" }}>
          <Table.Header>
            <Table.Row>
              <Table.ColumnHeader w="40%">Wanted by</Table.ColumnHeader>
              <Table.ColumnHeader w="26%">Until</Table.ColumnHeader>
              <Table.ColumnHeader>Now</Table.ColumnHeader>
              <Table.ColumnHeader w="190px" />
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {rows.map((row) => (
              <RunRowView key={row.name} row={row} alone={rows.length === 1} {...{ pool, seen, ended, extender, reload }} />
            ))}
          </Table.Body>
        </Table.Root>
      </Wide>
      {extender ? null : <Sentence>{NO_EXTENDER}</Sentence>}
    </>
  );
};

type RunRowProps = Omit<RunsProps, "live"> & { row: RunRow; alone: boolean };

const RunRowView = ({ row, alone, pool, seen, ended, extender, reload }: RunRowProps) => {
  const over = row.live ? undefined : ended.find(({ task }) => task.dag_id === row.dagId && task.dag_run_id === row.runId);
  const pods = (seen?.status.machines ?? []).flatMap((machine) => machine.pods);
  const budgets = row.leases.filter((lease) => lease.budget);
  const currency = seen?.status.currency ?? "";
  const hangs = over ? [] : (seen?.status.hangs ?? []).filter((hang) => isOf(row.name, hang.run));
  return (
    <Table.Row data-run={row.name}>
      <Table.Cell overflowWrap="anywhere">
        {row.dagId ? <RunLink dagId={row.dagId} runId={row.runId}>{row.name}</RunLink> : row.name}{" "}
        {row.dagId ? <NodesLink dagId={row.dagId} runId={row.runId}>nodes</NodesLink> : null}
      </Table.Cell>
      <Table.Cell>
        {row.leases.length ? row.leases.map(untilOf).join("; ") : "not seen by a check yet"}
        {budgets.map(({ run, budget }) => (
          <Text key={run} fontSize="xs" color="fg.muted" data-budget={run}>
            {budgetInWords(budget!, currency)}
          </Text>
        ))}
      </Table.Cell>
      <Table.Cell overflowWrap="anywhere">
        {row.live ? <Live run={row.live} seen={seen} /> : null}
        {over ? (
          <Text color="fg.muted">
            over since that check: <TaskLink task={over.task} /> ended {moment(over.task.end_date ?? over.task.run_after)}
          </Text>
        ) : null}
        {!row.live && !over ? <Text color="fg.muted">no task of it runs now</Text> : null}
        {hangs.map((hang) => (
          <Box key={hang.pod} data-hang={hang.pod}>
            <Badge colorPalette="orange">may hang</Badge>
            <Text fontSize="xs">{hangInWords(hang)}</Text>
          </Box>
        ))}
      </Table.Cell>
      <Table.Cell>
        {row.dagId && !over ? (
          <Box display="flex" gap={1} flexWrap="wrap" justifyContent="end">
            {extender ? <MoreTime pool={pool.name} run={row} extender={extender} done={reload} /> : null}
            {extender && budgets.length ? (
              <MoreMoney
                {...{ pool: pool.name, currency, extender, run: row, done: reload }}
                most={Math.max(...budgets.map(({ budget }) => budget!.most))}
              />
            ) : null}
            <ZeroNow run={row} pods={pods} alone={alone} done={reload} />
          </Box>
        ) : null}
      </Table.Cell>
    </Table.Row>
  );
};

const untilOf = (lease: Lease) =>
  `${lease.nodes === null ? UNKNOWN : count(lease.nodes, "node")} ${lease.live ? "until" : "until (over)"} ${
    Number.isNaN(Date.parse(lease.until)) ? UNKNOWN : moment(lease.until)
  }${lease.reason ? ` (${lease.reason})` : ""}`;

const budgetInWords = (budget: Budget, currency: string) =>
  `max_cost ${money(budget.most, currency)}: ${money(budget.spent, currency)} spent ${
    budget.at ? `by ${moment(budget.at)}` : "so far"
  }, at least ${money(budget.left, currency)} left${budget.raised ? ` (${budget.raised})` : ""}`;

const hangInWords = (hang: Hang) =>
  `The GPUs of ${hang.pod}${(hang.pods ?? 1) > 1 ? `, and those of its other ${count(hang.pods! - 1, "pod")},` : ""} have been ${
    hang.shownBy
  } since ${hang.since ? moment(hang.since) : UNKNOWN}.`;

const Live = ({ run, seen }: { run: LiveRun; seen: PoolNow | undefined }) => (
  <>
    <Badge colorPalette={PALETTE[seenStage(run, seen)]} mr={2}>
      {seenStage(run, seen)}
    </Badge>
    {inOrderOfBegin(run.tasks).map((task) => (
      <Box key={`${task.task_id} ${task.map_index}`} as="span" mr={2}>
        <TaskLink task={task} />
      </Box>
    ))}
  </>
);

const Machines = ({ status }: { status: Status }) => {
  if (!status.machines.length) return <Sentence>There was no machine of this pool at the last check.</Sentence>;
  return (
    <Wide>
      <Table.Root size="sm" variant="line" mt={3} style={{ tableLayout: "fixed" }}>
        <Table.Header>
          <Table.Row>
            <Table.ColumnHeader w="30%">Machine</Table.ColumnHeader>
            <Table.ColumnHeader w="12%">State</Table.ColumnHeader>
            <Table.ColumnHeader w="12%">GPUs used</Table.ColumnHeader>
            <Table.ColumnHeader>Why it is there</Table.ColumnHeader>
            <Table.ColumnHeader w="14%">Age</Table.ColumnHeader>
            <Table.ColumnHeader w="12%" textAlign="end">
              Cost so far
            </Table.ColumnHeader>
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {status.machines.map((machine) => (
            <MachineRow key={machine.machine} machine={machine} status={status} />
          ))}
        </Table.Body>
      </Table.Root>
    </Wide>
  );
};

const MachineRow = ({ machine, status }: { machine: MachineNow; status: Status }) => (
  <Table.Row>
    <Table.Cell overflowWrap="anywhere">
      {machine.node || machine.machine}
      <Text fontSize="xs" color="fg.muted">
        {machine.node ? `${machine.machine}, ` : ""}
        {machine.group}
      </Text>
    </Table.Cell>
    <Table.Cell>{machine.state}</Table.Cell>
    <Table.Cell>
      {known(machine.gpus_used)} of {known(machine.gpus)}
    </Table.Cell>
    <Table.Cell overflowWrap="anywhere">{whyItStays(machine, status)}</Table.Cell>
    <Table.Cell>{duration(machine.age)}</Table.Cell>
    <Table.Cell textAlign="end">
      {money(machine.cost, status.currency)}
      <Text fontSize="xs" color="fg.muted">
        {money(machine.price, status.currency)} an hour
      </Text>
    </Table.Cell>
  </Table.Row>
);
