// Small components used all over the page.

import { Alert, Box, Heading, Link as ChakraLink, Text } from "@chakra-ui/react";
import type { ReactNode } from "react";
import { Link } from "react-router-dom";

import { runPath, segment } from "./api.ts";
import { firstSentence, percent } from "./format.ts";
import type { Computed, Failure, Phase } from "./records.ts";
import type { Task } from "./tasks.ts";

/** Colours that distinguish the phases in light and dark mode. */
export const COLORS: Record<Phase | "other", string> = {
  booting: "var(--chakra-colors-orange-solid)",
  working: "var(--chakra-colors-green-solid)",
  idle: "var(--chakra-colors-purple-solid)",
  other: "var(--chakra-colors-gray-solid)",
};

type Children = { children: ReactNode };

const WHOLE = 0.95; // as in the bill's text

/** "GPUs 38 %": how much of the working time they computed, and for how much of it that is known. */
export const gpusComputed = ({ share, known }: Computed) =>
  `GPUs ${percent(share)}${known < WHOLE ? `, known for ${percent(known)}` : ""}`;

/** Working time, with the GPU use below it. */
export const Working = ({ time, computed }: { time: string; computed: Computed | null }) => (
  <>
    {time}
    {computed ? (
      <Text fontSize="xs" color="fg.muted">
        {gpusComputed(computed)}
      </Text>
    ) : null}
  </>
);

export const Sentence = ({ children }: Children) => (
  <Text color="fg.muted" my={2}>
    {children}
  </Text>
);

/** A failed task's error: its type and first sentence; what else happened and what to do opens. */
export const Failed = ({ failure }: { failure: Failure }) => {
  const [first, more] = firstSentence(failure.what);
  const rest = [more, failure.fix].filter(Boolean).join("\n");
  const head = `${failure.task}: ${failure.type}: ${first}`;
  return (
    <Box fontSize="xs" whiteSpace="pre-wrap" overflowWrap="anywhere" data-failure={failure.type}>
      {rest ? (
        <details>
          <summary>{head}</summary>
          {rest}
        </details>
      ) : (
        head
      )}
    </Box>
  );
};

type NoticeProps = Children & { status: "error" | "warning" | "info" | "success"; title?: string };

export const Notice = ({ status, title, children }: NoticeProps) => (
  <Alert.Root status={status} my={2}>
    <Alert.Indicator />
    <Alert.Content minW={0} overflowWrap="anywhere">
      {title ? <Alert.Title>{title}</Alert.Title> : null}
      {/* Airflow's colour of links is too faint on a notice's own. */}
      <Alert.Description whiteSpace="pre-wrap" css={{ "& a": { color: "inherit", textDecoration: "underline" } }}>{children}</Alert.Description>
    </Alert.Content>
  </Alert.Root>
);

export const Section = ({ title, aside, children }: Children & { title: string; aside?: ReactNode }) => (
  <Box as="section" aria-label={title} mt={6}>
    <Box display="flex" flexWrap="wrap" alignItems="baseline" gap={3}>
      <Heading as="h2" size="md">
        {title}
      </Heading>
      {aside}
    </Box>
    {children}
  </Box>
);

/** For content too wide for a phone: it scrolls separately from the page. */
export const Wide = ({ children }: Children) => (
  <Box overflowX="auto">
    <Box minW="720px">{children}</Box>
  </Box>
);

const To = ({ to, children }: Children & { to: string }) => (
  <ChakraLink asChild color="fg.info" overflowWrap="anywhere" display="inline">
    <Link to={to}>{children}</Link>
  </ChakraLink>
);

export const DagLink = ({ dagId }: { dagId: string }) => <To to={`/dags/${segment(dagId)}`}>{dagId}</To>;

const uiPath = (dagId: string, runId: string) => `/${runPath(dagId, runId).replace("/dagRuns/", "/runs/")}`;

export const RunLink = ({ dagId, runId, children }: { dagId: string; runId: string; children?: ReactNode }) => (
  <To to={uiPath(dagId, runId)}>{children ?? `${dagId} ${runId}`}</To>
);

export const NodesLink = ({ dagId, runId, children }: { dagId: string; runId: string; children: ReactNode }) => (
  <To to={`${uiPath(dagId, runId)}/plugin/gpu_nodes`}>{children}</To>
);

export const TaskLink = ({ task, children }: { task: Task; children?: ReactNode }) => {
  const mapped = task.map_index >= 0 ? `/mapped/${task.map_index}` : "";
  return (
    <To to={`${uiPath(task.dag_id, task.dag_run_id)}/tasks/${segment(task.task_id)}${mapped}`}>
      {children ?? taskName(task)}
    </To>
  );
};

export const taskName = (task: Task) => (task.map_index >= 0 ? `${task.task_id} [${task.map_index}]` : task.task_id);

const LEGEND: [Phase, string][] = [
  ["booting", "booting"],
  ["working", "working"],
  ["idle", "idle"],
];

export const Legend = ({ children }: { children?: ReactNode }) => (
  <Box display="flex" gap={4} flexWrap="wrap" fontSize="sm" my={1}>
    {LEGEND.map(([phase, name]) => (
      <Box key={phase} display="flex" alignItems="center" gap={1}>
        <Box as="span" w={3} h={3} style={{ background: COLORS[phase] }} />
        {name}
      </Box>
    ))}
    {children}
  </Box>
);
