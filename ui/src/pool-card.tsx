// One pool: what it is now by the last look, what tasks tell since, its machines, and the buttons.

import { Badge, Box, Heading, Table, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";

import { LookNow, MoreTime, ZeroNow } from "./actions.tsx";
import { count, duration, moment, money, UNKNOWN } from "./format.ts";
import type { Now, PoolNow } from "./load.ts";
import { type Lease, type MachineNow, runOfLease, type Status, whyItStays } from "./records.ts";
import type { LiveRun, Stage } from "./tasks.ts";
import { Notice, NodesLink, RunLink, Sentence, TaskLink } from "./words.tsx";

type Props = { pool: string; seen: PoolNow | undefined; now: Now; reload: () => void };

export const PoolCard = ({ pool, seen, now, reload }: Props) => {
  const live = now.live.filter((run) => run.pool === pool);
  const newer = now.red.find((look) => seen && look.task.dag_id === seen.task.dag_id);
  return (
    <Box borderWidth={1} borderRadius="md" p={4} mt={3} data-pool={pool}>
      <Box display="flex" flexWrap="wrap" gap={3} alignItems="center">
        <Heading as="h3" size="sm" overflowWrap="anywhere">
          {pool}
        </Heading>
        <Box flex={1} />
        <LookNow janitor={seen?.task.dag_id ?? now.janitor} done={reload} />
      </Box>
      {seen ? <Counts status={seen.status} /> : null}
      {seen ? <AsOf seen={seen} now={now} /> : <Sentence>{NO_LOOK}</Sentence>}
      {newer && seen && newer.task.run_after > seen.task.run_after ? (
        <Notice status="warning">
          The last look failed, so this is what an earlier one saw: see <TaskLink task={newer.task} />.
        </Notice>
      ) : null}
      <Runs pool={pool} live={live} seen={seen} now={now} reload={reload} />
      {seen ? <Machines status={seen.status} /> : null}
    </Box>
  );
};

const NO_LOOK = "No task has looked at this pool yet: put GpuPoolStatusOperator into a DAG on a schedule, as example_dags/janitor.py does.";

const known = (value: number | null) => (value === null ? UNKNOWN : String(value));

const Counts = ({ status }: { status: Status }) => (
  <Box display="flex" flexWrap="wrap" gap={6} my={2}>
    <Figure name="ready">{known(status.nodes)}</Figure>
    <Figure name="booting">{known(add(status.booting, status.launching))}</Figure>
    <Figure name="draining or broken">{known(status.out_of_use)}</Figure>
    <Figure name="wanted">{known(status.wanted)}</Figure>
    <Figure name="cost an hour">{money(status.cost_per_hour)}</Figure>
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
          This is stale: the last look was {duration(age / 1000)} ago, though one was due every{" "}
          {duration(now.period / 1000)}. Is the janitor&apos;s DAG paused?
        </Notice>
      ) : null}
    </>
  );
};

const STAGE: Record<Stage, { text: string; palette: string }> = {
  booting: { text: "booting", palette: "orange" },
  working: { text: "working", palette: "green" },
  draining: { text: "draining", palette: "purple" },
};

type RunRow = { dagId: string; runId: string; live: LiveRun | null; leases: Lease[]; name: string };

/** Runs that want nodes, by their demand at the last look or by their tasks since: each once. */
function rowsOf(live: readonly LiveRun[], leases: readonly Lease[]): RunRow[] {
  const rows = live.map((run): RunRow => {
    const name = `${run.dagId}/${run.runId}`;
    const own = leases.filter((lease) => lease.run === name || lease.run.startsWith(`${name}/`));
    return { dagId: run.dagId, runId: run.runId, live: run, leases: own, name };
  });
  const told = new Set(rows.flatMap((row) => row.leases));
  const rest = leases.filter((lease) => !told.has(lease));
  return [...rows, ...rest.map((lease): RunRow => {
    const run = runOfLease(lease.run);
    return { dagId: run?.dagId ?? "", runId: run?.runId ?? "", live: null, leases: [lease], name: lease.run };
  })];
}

type RunsProps = { pool: string; live: LiveRun[]; seen: PoolNow | undefined; now: Now; reload: () => void };

const Runs = ({ pool, live, seen, now, reload }: RunsProps) => {
  const rows = rowsOf(live, seen?.status.leases ?? []);
  if (!rows.length) {
    const others = seen && (seen.status.wanted ?? 0) > 0 ? seen.status.wanted_by : "";
    return <Sentence>{others ? `Wanted by ${others}.` : "No run wants nodes of this pool now."}</Sentence>;
  }
  return (
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
          <RunRowView key={row.name} row={row} alone={rows.length === 1} pool={pool} seen={seen} now={now} reload={reload} />
        ))}
      </Table.Body>
    </Table.Root>
  );
};

type RunRowProps = Omit<RunsProps, "live"> & { row: RunRow; alone: boolean };

const RunRowView = ({ row, alone, pool, seen, now, reload }: RunRowProps) => {
  const pods = (seen?.status.machines ?? []).flatMap((machine) => machine.pods);
  return (
    <Table.Row data-run={row.name}>
      <Table.Cell overflowWrap="anywhere">
        {row.dagId ? <RunLink dagId={row.dagId} runId={row.runId}>{row.name}</RunLink> : row.name}{" "}
        {row.dagId ? <NodesLink dagId={row.dagId} runId={row.runId}>nodes</NodesLink> : null}
      </Table.Cell>
      <Table.Cell>{row.leases.length ? row.leases.map(untilOf).join("; ") : "not seen by a look yet"}</Table.Cell>
      <Table.Cell overflowWrap="anywhere">
        {row.live ? <Live run={row.live} /> : <Text color="fg.muted">no task of it runs now</Text>}
      </Table.Cell>
      <Table.Cell>
        {row.dagId ? (
          <Box display="flex" gap={1} flexWrap="wrap" justifyContent="end">
            <MoreTime pool={pool} run={row} extender={now.extender} done={reload} />
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

const Live = ({ run }: { run: LiveRun }) => (
  <>
    <Badge colorPalette={STAGE[run.stage].palette} mr={2}>
      {STAGE[run.stage].text}
    </Badge>
    {run.tasks.map((task) => (
      <Box key={`${task.task_id} ${task.map_index}`} as="span" mr={2}>
        <TaskLink task={task} />
      </Box>
    ))}
  </>
);

const Machines = ({ status }: { status: Status }) => {
  if (!status.machines.length) return <Sentence>There was no machine of this pool at the last look.</Sentence>;
  return (
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
    <Table.Cell textAlign="end">{money(machine.cost)}</Table.Cell>
  </Table.Row>
);
