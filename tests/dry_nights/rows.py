"""Which tests hold each row of docs/blocks.md: by what the row says happens, the tests' ids, dry nights first.

A dry night holds states and colours, a test in tests/sandbox what an operator or a trigger leaves of nodes, pods and
demand, and one in tests/airflow both at once, under a real scheduler. `what at when` is a cell of the chaos matrix
(tests/airflow/chaos). test_rows.py holds that no row is missing here, and no test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

DRY = "tests/dry_nights"
POD = "tests/sandbox/test_gpu_pod.py"
POD_KILLS = "tests/sandbox/test_gpu_pod_kills.py"
POD_MACHINES = "tests/sandbox/test_gpu_pod_machines.py"
STANDS = "tests/sandbox/test_earlier_success.py"
GANG = "tests/sandbox/test_gang.py"
GANG_LOSSES = "tests/sandbox/test_gang_losses.py"
REAL = "tests/airflow"

OF_BLOCK: Mapping[str, Sequence[str]] = {
    "everything succeeds": (
        f"{DRY}/test_ends.py::test_everything_succeeds",
        "tests/sandbox/test_same_dag.py::test_a_night_on_eks",
        "tests/sandbox/test_same_dag.py::test_a_night_on_gke",
        f"{REAL}/test_example_dags.py::test_an_example_trains_and_leaves_nothing",
        f"{REAL}/test_example_dag_gke.py::test_the_night_trains_and_leaves_nothing",
        f"{REAL}/test_block.py::test_a_good_night",
    ),
    "Ensure fails (no capacity, quota, drift)": (
        f"{DRY}/test_ends.py::test_a_task_fails[gpus.ensure]",
        "tests/sandbox/test_ensure.py::test_a_stock_out_everywhere_is_told_and_given_up",
        "tests/sandbox/test_ensure.py::test_a_group_that_cannot_be_created_after_another_one",
        "tests/sandbox/test_ensure.py::test_machines_that_do_not_join_in_time_are_let_go",
    ),
    "Ensure never reaches the pool: its connection, credentials, permissions or cluster": (
        f"{REAL}/test_block.py::test_block_that_never_reached_its_pool_has_nothing_to_release",
        "tests/unit/tasks/test_nothing_begun.py::test_the_mark_is_there_only_if_no_try_can_have_written",
        "tests/unit/operators/test_ensure.py::test_a_try_that_only_read_leaves_a_mark_for_its_scale_down",
        "tests/unit/sensors/test_scale_down.py::test_a_run_that_has_begun_nothing_has_nothing_to_release",
    ),
    "Ensure's worker is killed, for example out of memory": (
        f"{DRY}/test_ends.py::test_the_worker_of_ensure_is_killed",
        "tests/sandbox/test_ensure.py::test_a_worker_that_is_killed_leaves_it_to_the_run_s_scale_down",
        f"{REAL}/test_block.py::test_worker_of_ensure_is_killed_while_it_waits",
        "worker-killed at ensure-after-create",
    ),
    "a task of the block fails": (
        f"{DRY}/test_ends.py::test_a_task_fails[train]",
        f"{DRY}/test_ends.py::test_a_task_fails[evaluate]",
        f"{DRY}/test_ends.py::test_a_task_fails[gpus.device_plugin]",
        f"{DRY}/test_ends.py::test_a_task_that_fails_is_tried_again_before_scale_down_runs",
        f"{DRY}/test_ends.py::test_scale_down_waits_for_the_end_of_all_work",
        f"{DRY}/test_trigger_rules.py::test_a_rescue_in_the_block_saves_the_night_if_no_other_last_task_fails",
        f"{POD}::test_failure_tells_exit_code_and_last_words",
        f"{REAL}/test_example_dags.py::test_a_training_that_fails_is_a_red_night_and_leaves_nothing",
    ),
    "a training has succeeded, and the worker that collects it is killed": (
        f"{STANDS}::test_the_next_try_collects_it",
        f"{STANDS}::test_a_person_who_clears_it_has_it_trained_again",
        f"{STANDS}::test_one_that_nobody_collects_is_told_by_scale_down",
        "tests/unit/operators/test_block_verdict.py"
        "::test_a_training_that_had_succeeded_and_was_not_collected_is_red_and_told_so",
        f"{REAL}/test_kills.py::test_a_success_whose_worker_was_killed_is_collected_by_the_next_try",
    ),
    "scale-down fails in all its tries": (
        f"{DRY}/test_ends.py::test_a_task_fails[gpus.scale_down]",
        f"{DRY}/test_ends.py::test_scale_down_that_fails_is_tried_three_times_more",
        "tests/sandbox/test_refusals.py::test_a_scale_down_that_fails_says_what_still_runs",
        "tests/sandbox/test_ensure.py::test_with_nobody_left_the_switch_ends_what_a_killed_worker_had_grown",
        "tests/sandbox/test_janitor.py::test_dead_runs_lose_their_demand_their_pods_and_their_machines",
        f"{REAL}/test_block.py::test_zero_fails_and_is_cleared",
    ),
    "scale-down does not reach the pool for five minutes, since its connection, credentials or cluster are gone": (
        "tests/unit/sensors/test_scale_down.py::"
        "test_a_pool_that_cannot_be_reached_is_an_error_after_five_minutes_and_no_other_try",
        "tests/unit/sensors/test_scale_down.py::test_the_trigger_tolerates_it_no_longer",
        "connection-lost at ensure-without-gpus",
    ),
    "a node stops being Ready": (
        "tests/unit/scaling/decide/test_decisions.py::test_a_machine_that_is_slow_to_join_is_told_with_the_time_of_its_replacement",
        "tests/unit/training/test_pod_wait.py::test_container_that_was_killed_as_its_node_went_down_is_preempted",
        f"{POD_MACHINES}::test_lost_machine_is_a_preemption_and_the_next_pod_gets_another",
        "sandbox/tests/unit/test_machines.py::test_a_node_that_is_not_ready_is_not_drained_before_the_cloud_gives_it_up",
    ),
    "one of the pods is preempted": (
        f"{POD}::test_evicted_pod_is_preempted_even_if_it_ends_well",
        f"{POD}::test_deleted_pod_is_preempted",
        "tests/sandbox/test_preemption.py::test_spot_loss_in_the_middle_loses_no_epoch",
        "tests/sandbox/test_preemption.py::test_preemptions_are_bounded",
        "spot-lost at train-deferred",
    ),
    "a rank of a task on [several nodes](multi-node.md) is lost or fails": (
        f"{GANG}::test_rank_that_is_taken_away_is_a_preemption_of_all",
        f"{GANG}::test_error_is_of_the_rank_that_failed_first_and_all_logs_are_whole",
        f"{GANG_LOSSES}::test_lost_node_ends_the_others_soon_and_the_next_gang_has_a_new_one",
        f"{REAL}/test_gang.py::test_night_on_two_nodes_of_one_zone_outlives_the_loss_of_a_rank",
        f"{REAL}/test_gang_ends.py::test_night_fails_with_the_error_of_the_rank_that_failed_first",
    ),
    "one rank of such a task runs and the other does not come up": (
        "tests/unit/training/test_gang_wait.py::test_rank_that_does_not_start_in_time_is_named",
        "one-node-lost at gang-half-up",
    ),
    "a task on several nodes waits for its turn, without a pod, and is marked failed, cleared or timed out; "
    "its worker is killed": (
        f"{GANG}::test_trigger_deletes_the_gang_of_a_task_that_was_ended",
        f"{GANG}::test_worker_that_died_is_followed_by_one_that_goes_on_with_the_gang",
        "worker-killed at gang-suspended",
        "task-cleared at gang-suspended",
        "run-failed at gang-suspended",
        "dagrun-timeout at gang-suspended",
    ),
    "a task is cleared while it runs, with its downstream tasks": (
        f"{DRY}/test_clears.py::test_a_task_is_cleared_while_it_runs_with_its_downstream_tasks",
        f"{DRY}/test_clears.py::test_the_run_is_cleared_while_its_training_runs",
        f"{POD_KILLS}::test_trigger_deletes_the_pod_of_a_task_that_was_killed",
        f"{POD_KILLS}::test_next_try_deletes_what_the_last_one_left",
        "tests/sandbox/test_same_dag.py::test_a_night_on_eks",
        f"{REAL}/test_ended_tasks.py::test_deferred_pod_of_a_task_that_is_cleared_makes_room_for_another",
    ),
    "a task is cleared after the block has ended, alone or with its downstream tasks": (
        f"{DRY}/test_clears.py::test_a_task_is_cleared_after_the_block_has_ended",
        f"{DRY}/test_clears.py::test_the_run_is_cleared_after_its_end",
        f"{DRY}/test_clears.py::test_a_task_that_was_skipped_because_the_run_was_marked_is_cleared",
        f"{DRY}/test_clears.py::test_a_task_after_the_block_is_cleared_without_it",
    ),
    "only failed tasks are cleared, and one of them has a pod": (
        f"{DRY}/test_clears.py::test_only_failed_tasks_are_cleared",
        f"{DRY}/test_clears.py::test_only_failed_tasks_of_the_run_are_cleared",
        f"{DRY}/test_mapped.py::test_a_sweep_s_failed_index_is_cleared_alone",
        f"{POD_MACHINES}::test_pod_that_no_demand_covers_brings_its_node_and_takes_it_along",
        "tests/sandbox/test_pod_without_block.py::test_deferred_task_that_is_marked_failed",
    ),
    "the same with a task without a pod of its own": (f"{DRY}/test_clears.py::test_only_failed_tasks_are_cleared",),
    "the same with Ensure": (
        f"{DRY}/test_clears.py::test_only_failed_tasks_are_cleared_where_ensure_has_failed",
        "tests/unit/operators/test_ensure.py::test_ensure_that_is_cleared_alone_brings_nothing_that_nobody_takes_away",
        f"{DRY}/test_clears.py::test_ensure_is_cleared_with_its_downstream_tasks",
        f"{DRY}/test_clears.py::test_ensure_is_cleared_alone",
    ),
    "scale-down is cleared alone": (
        f"{DRY}/test_clears.py::test_scale_down_is_cleared_alone",
        f"{DRY}/test_clears.py::test_scale_down_that_has_failed_is_cleared_with_its_downstream_tasks",
        "tests/sandbox/test_scale_down.py::test_twice_is_once",
        f"{REAL}/test_block.py::test_zero_fails_and_is_cleared",
    ),
    "a task is marked failed": (
        f"{DRY}/test_marks.py::test_task_marked_failed",
        f"{DRY}/test_marks.py::test_ensure_marked_failed",
        f"{DRY}/test_marks.py::test_scale_down_marked_failed",
        f"{POD_KILLS}::test_trigger_deletes_the_pod_of_a_task_that_was_killed",
        f"{POD_KILLS}::test_sigterm_deletes_the_pod_and_is_never_green",
        f"{REAL}/test_kills.py::test_deferred_pod_whose_task_is_marked_failed_goes",
        f"{REAL}/test_ended_tasks.py::test_blocking_task_that_is_marked_failed_takes_the_pod_along",
    ),
    "the run is marked failed while tasks of the block run": (
        f"{DRY}/test_marks.py::test_run_marked_failed_while_its_training_runs",
        f"{DRY}/test_marks.py::test_run_marked_failed_while_ensure_runs",
        "tests/sandbox/test_ensure.py::test_trigger_that_is_ended_gives_the_demand_up_unless_somebody_goes_on_with_it",
        f"{REAL}/test_block.py::test_run_marked_failed",
        f"{REAL}/test_ended_tasks.py::test_deferred_pod_that_nobody_wants_goes[run marked failed]",
    ),
    "the run is marked failed while they wait: for another try, a slot or a worker": (
        f"{DRY}/test_marks.py::test_run_marked_failed_while_its_training_waits",
        f"{DRY}/test_marks.py::test_a_task_that_is_queued_in_the_moment_of_the_mark_runs_all_the_same",
        f"{DRY}/test_mapped.py::test_a_run_with_a_mapped_task_group_is_marked_while_one_index_waits_for_its_retry",
        "run-failed at train-queued",
        "run-failed at train-waits-for-retry",
    ),
    "the run is marked failed after all work of the block has ended": (
        f"{DRY}/test_marks.py::test_run_marked_after_all_work_ends_as_its_tasks_have",
    ),
    "the run is marked a success while tasks of the block wait": (
        f"{DRY}/test_marks.py::test_run_marked_success_while_its_training_waits",
    ),
    "the run is marked a success while tasks of the block run": (
        f"{DRY}/test_marks.py::test_run_marked_success_while_its_training_runs",
        f"{DRY}/test_marks.py::test_run_marked_success_while_its_last_task_runs",
        f"{REAL}/test_ended_tasks.py::test_deferred_pod_that_nobody_wants_goes[task marked success]",
    ),
    "a task of the block raises AirflowSkipException, or a branch or short circuit skips it": (
        f"{DRY}/test_skips.py::test_a_task_skips_itself",
        f"{DRY}/test_skips.py::test_a_branch_in_the_block",
        f"{DRY}/test_skips.py::test_a_branch_that_ends_the_block",
        f"{DRY}/test_skips.py::test_a_decision_in_the_block_comes_too_late_for_its_nodes",
        f"{DRY}/test_skips.py::test_a_task_is_skipped_and_another_one_fails",
        f"{POD}::test_exit_code_that_skips",
    ),
    "a task after the block (`block >> report`) has any trigger rule": (
        f"{DRY}/test_trigger_rules.py::test_tasks_after_the_block_depend_on_its_last_tasks_and_not_on_its_own",
        f"{DRY}/test_trigger_rules.py::test_a_rescue_in_the_block_does_not_save_its_sibling",
        f"{DRY}/test_trigger_rules.py::test_what_comes_after_the_block_begins_beside_its_scale_down",
    ),
    "the run is marked failed before `begin`": (f"{DRY}/test_marks.py::test_run_marked_before_the_block_begins",),
    "`dagrun_timeout`": (
        f"{DRY}/test_outside.py::test_dagrun_timeout_skips_all_that_has_not_ended_teardowns_too",
        f"{POD_MACHINES}::test_trigger_takes_the_nodes_along_where_the_run_is_over",
        f"{REAL}/test_block.py::test_dagrun_timeout_skips_the_scale_down_and_the_trigger_does_its_work",
        "dagrun-timeout at ensure-deferred",
    ),
    "the same while no trigger of the block runs (`deferrable=False`, tasks without pods; just before a trigger "
    "begins; in the second in which it ends)": (
        f"{DRY}/test_outside.py::test_dagrun_timeout_while_the_training_waits_for_its_retry",
        "tests/unit/operators/test_ensure.py::test_run_ends_a_moment_after_its_timeout",
        "tests/sandbox/test_janitor.py::test_dead_runs_lose_their_demand_their_pods_and_their_machines",
        "tests/unit/scaling/apply/test_reconcile.py::test_after_its_time_a_run_s_machine_goes_without_anybody_giving_it_up",
        "dagrun-timeout at train-in-worker",
    ),
    "the run or the DAG is deleted": (
        f"{DRY}/test_outside.py::test_a_dag_is_deleted_while_its_training_is_deferred",
        f"{POD_MACHINES}::test_trigger_takes_the_nodes_along_where_the_run_is_over",
        f"{REAL}/test_ended_tasks.py::test_dag_that_is_deleted_takes_the_pod_its_nodes_and_its_demand_along",
        "run-deleted at ensure-deferred",
    ),
    "a task before the block skips all its tasks (`decide >> block`)": (
        f"{DRY}/test_skips.py::test_a_decision_before_the_block_keeps_its_nodes_from_coming",
        f"{DRY}/test_skips.py::test_a_decision_before_the_block_that_skips_only_what_comes_right_after_it",
        f"{DRY}/test_skips.py::test_a_branch_that_leads_around_the_block",
    ),
    "a task in the block skips all others": (
        f"{DRY}/test_skips.py::test_a_decision_in_the_block_comes_too_late_for_its_nodes",
    ),
    "mapped tasks (`.expand`)": (
        f"{DRY}/test_mapped.py::test_a_sweep_of_which_some_fail",
        f"{DRY}/test_mapped.py::test_scale_down_waits_for_the_last_of_a_sweep",
        f"{DRY}/test_mapped.py::test_a_sweep_over_what_a_task_in_the_block_returns",
        f"{REAL}/test_gpu_pod.py::test_sweep_in_a_block",
    ),
    "several blocks, in sequence or in parallel, on one pool or several": (
        f"{DRY}/test_several_blocks.py::test_a_block_that_comes_after_another_one_begins_beside_its_scale_down",
        f"{DRY}/test_several_blocks.py::test_blocks_side_by_side_end_each_by_itself",
        f"{DRY}/test_several_blocks.py::test_the_first_of_two_blocks_fails",
        f"{DRY}/test_several_blocks.py::test_a_block_in_a_block",
        "tests/sandbox/test_scale_down.py::test_blocks_of_one_run_share_a_pool_and_each_goes_by_itself",
    ),
    (
        "an Ensure without a scale-down that is sure to run: none of its pool and block comes after it, or a failure"
        " or a branch may skip it"
    ): (
        "tests/unit/operators/test_scale_down_after.py::test_machines_that_nothing_would_release_are_not_started",
        "tests/unit/operators/test_scale_down_after.py::test_a_scale_down_that_may_not_run_does_not_count",
        "tests/unit/operators/test_scale_down_after.py::test_it_is_refused_before_the_cloud_is_asked_anything",
        f"{DRY}/test_skips.py::test_a_scale_down_by_hand_runs_whatever_fails",
        f"{DRY}/test_skips.py::test_a_branch_skips_the_teardown_right_after_it",
    ),
    "a block in a task group": (
        f"{DRY}/test_several_blocks.py::test_a_block_in_task_groups",
        "tests/unit/test_gpu_nodes.py::test_blocks_in_task_groups_take_the_groups_names",
        "tests/unit/test_gpu_nodes.py::test_task_groups_and_blocks_in_a_block_take_the_names_of_the_groups_around_it",
    ),
    "a block in a mapped task group": (
        f"{DRY}/test_mapped.py::test_each_index_of_a_mapped_task_group_is_a_block",
        f"{DRY}/test_mapped.py::test_an_index_s_scale_down_does_not_wait_for_the_other_one",
        "tests/unit/test_gpu_nodes.py::test_block_in_a_mapped_task_group_is_one_for_each_index",
    ),
    "a block around a task loop (Airflow 3.4)": (
        "tests/unit/tasks/test_loops.py::test_what_brings_or_releases_nodes_belongs_around_a_loop",
        "tests/unit/tasks/test_loops.py::test_a_training_that_was_cleared_alone_waits_in_its_worker",
        f"{REAL}/test_loops.py::test_a_clear_of_one_iteration_leaves_the_others_alone",
    ),
    "a backfill, catching up on ten nights, `max_active_runs > 1`": (
        f"{DRY}/test_several_runs.py::test_a_backfill",
        f"{DRY}/test_several_runs.py::test_runs_side_by_side_end_each_by_itself",
        "tests/unit/scaling/apply/test_reconcile.py::test_what_two_runs_want_adds_up_and_each_goes_by_itself",
        "tests/sandbox/test_reconcile.py::test_runs_that_come_and_go_at_once",
        "tests/sandbox/test_scale_down.py::test_what_another_run_wants_stays_and_is_named",
        f"{REAL}/test_block.py::test_ten_nights_that_are_caught_up_on_get_their_nodes_and_leave_none",
    ),
    "the previous run has failed, with `depends_on_past` or `wait_for_downstream`": (
        f"{DRY}/test_several_runs.py::"
        "test_a_night_that_depends_on_a_failed_one_starts_no_nodes_until_that_was_repaired",
        f"{DRY}/test_several_runs.py::test_a_night_that_depends_on_one_that_runs_waits_for_the_end_of_its_block",
        f"{DRY}/test_several_runs.py::test_a_night_whose_nodes_may_still_run_holds_the_next_one",
        f"{DRY}/test_several_runs.py::test_a_block_s_first_run_begins_though_the_dag_has_run_before",
    ),
    "a task waits because of `max_active_tis_per_dag`, `max_active_tis_per_dagrun`, `max_active_tasks` or a full slot "
    "pool": (
        f"{DRY}/test_slots.py::test_tasks_that_run_one_at_a_time_keep_their_nodes_meanwhile",
        f"{DRY}/test_slots.py::test_max_active_tis_per_dag_holds_over_all_runs",
        f"{DRY}/test_slots.py::test_a_training_without_a_slot_keeps_its_nodes",
        f"{DRY}/test_several_runs.py::test_a_run_waits_for_max_active_runs_without_nodes",
    ),
    "the slot pool of `default_args` or the executor is full when the block's work has ended": (
        f"{DRY}/test_slots.py::test_scale_down_waits_for_no_slot_of_the_author_s",
        f"{DRY}/test_slots.py::test_scale_down_comes_before_all_that_has_its_priority",
    ),
    "`execution_timeout` of Ensure (`ensure_args`, `default_args`)": (
        "tests/sandbox/test_ensure.py::test_an_execution_timeout_while_a_machine_boots_lets_it_go",
        "tests/sandbox/test_ensure.py::test_a_deferred_wait_is_ended_by_its_timeout_and_not_by_its_execution_timeout",
    ),
    "`execution_timeout` of scale-down (`scale_down_args`; not from `default_args`)": (
        "tests/sandbox/test_scale_down.py::test_an_execution_timeout_leaves_the_rest_to_the_next_try",
        f"{DRY}/test_ends.py::test_scale_down_that_fails_is_tried_three_times_more",
        "tests/unit/test_block_tasks.py::test_scale_down_and_verdict_take_nothing_that_keeps_them_from_running",
    ),
    "the DAG is paused while it runs": (
        f"{DRY}/test_outside.py::test_a_dag_is_paused_while_its_training_runs",
        f"{REAL}/test_changing_dags.py::test_a_dag_that_is_paused_keeps_its_node_until_it_goes_on",
    ),
    "another DAG's run wants nodes of a pool of this name, with other machine types, capacity types, zones or labels": (
        "tests/sandbox/test_other_specs.py::test_a_second_spec_of_a_pool_name_is_refused_before_anything_is_made",
        "tests/unit/scaling/decide/test_other_specs.py::"
        "test_while_another_dag_s_demand_allows_other_nodes_a_run_is_refused",
    ),
    "two blocks, or Ensures, of one DAG have one pool name and two specs with such a difference": (
        "tests/unit/operators/test_one_spec.py::test_two_specs_of_one_name_are_refused",
    ),
    "the DAG's file changes while it runs: the pool has other machines": (
        "tests/sandbox/test_other_specs.py::test_a_retried_pod_gets_a_machine_of_the_changed_spec",
        f"{DRY}/test_outside.py::test_a_pool_gets_other_machines_while_its_training_runs",
        f"{REAL}/test_changing_dags.py::test_a_pool_that_gets_another_machine_while_a_night_runs_keeps_that_night_s",
    ),
    "the same: the pool or the block is renamed": (
        f"{DRY}/test_outside.py::test_a_block_is_renamed_while_its_training_runs",
        "tests/unit/operators/test_work_to_come.py::test_no_nodes_are_for_what_has_begun_or_has_ended",
        "tests/unit/sensors/test_former_blocks.py::test_what_a_renamed_block_wanted_is_given_up_and_nobody_else_s",
        f"{REAL}/test_changing_dags.py::"
        "test_a_pool_that_is_renamed_while_a_night_runs_brings_no_second_node_and_leaves_none",
    ),
    "the same: the block disappears": (
        f"{DRY}/test_outside.py::test_a_block_disappears_while_its_training_runs",
        f"{REAL}/test_changing_dags.py::test_a_block_that_disappears_while_a_night_runs_leaves_nothing",
    ),
    "the same: the whole file disappears": (
        f"{DRY}/test_outside.py::test_a_dag_s_file_disappears_while_its_training_runs",
        f"{REAL}/test_changing_dags.py::"
        "test_a_dag_file_that_disappears_while_a_night_runs_keeps_its_node_until_it_is_back",
    ),
    "Airflow is gone for good": (
        "tests/sandbox/test_ensure.py::test_with_nobody_left_the_switch_ends_what_a_killed_worker_had_grown",
        "tests/unit/training/test_pod_deadline.py::test_a_pod_ends_with_its_run_s_demand_or_after_its_execution_timeout",
        f"{REAL}/test_airflow_dead.py::"
        "test_the_clouds_end_what_nobody_comes_back_for_and_a_training_outlives_its_airflow",
        "airflow-dead at train-deferred",
    ),
}
"""The table of "What happens to a block's nodes"."""

OF_GANG: Mapping[str, Sequence[str]] = {
    "its worker is killed": (
        f"{GANG}::test_next_try_ends_the_gang_of_the_one_before",
        f"{STANDS}::test_the_next_try_collects_it",
        f"{GANG}::test_task_that_is_told_to_stop_deletes_the_gang",
        "worker-killed at gang-suspended",
        "worker-killed at gang-in-worker",
    ),
    "the triggerer is killed": (
        f"{GANG_LOSSES}::test_next_triggerer_goes_on_with_all_ranks_logs",
        f"{GANG_LOSSES}::test_rank_that_is_deleted_while_no_triggerer_runs_is_lost",
        f"{GANG}::test_trigger_that_died_leaves_no_gang",
        "triggerer-killed at gang-suspended",
        "triggerer-killed at gang-running",
        "triggerer-killed at rank-lost",
    ),
    "the Kubernetes API server is away": (
        f"{GANG_LOSSES}::test_api_server_may_restart_meanwhile",
        "api-server-down at gang-suspended",
        "api-server-down at gang-running",
    ),
    "Kubernetes' Job controller is away": (
        f"{GANG_LOSSES}::test_job_controller_may_be_away_for_a_while",
        "job-controller-away at gang-suspended",
        "job-controller-away at gang-half-up",
    ),
    "a node goes": (
        f"{GANG_LOSSES}::test_lost_node_ends_the_others_soon_and_the_next_gang_has_a_new_one",
        "tests/sandbox/test_gang_queue.py::test_a_gang_whose_node_another_pod_took_gives_the_others_back_and_comes_again",
        "one-node-lost at gang-suspended",
        "one-node-lost at gang-running",
    ),
    "the task or the run is cleared": (
        f"{GANG}::test_trigger_deletes_the_gang_of_a_task_that_was_ended",
        f"{GANG}::test_next_try_ends_the_gang_of_the_one_before",
        "task-cleared at gang-suspended",
        "task-cleared at gang-running",
        "run-cleared at gang-running",
    ),
    "the run is marked failed or deleted, or meets `dagrun_timeout`": (
        f"{GANG}::test_trigger_deletes_the_gang_of_a_task_that_was_ended",
        f"{GANG_LOSSES}::test_gang_that_no_block_covers_brings_its_nodes_and_takes_them_along",
        f"{REAL}/test_gang_ends.py::test_task_that_is_marked_failed_takes_its_gang_along",
        "run-failed at gang-suspended",
        "run-deleted at gang-running",
        "dagrun-timeout at gang-running",
    ),
}
"""The table of "What happens to a gang"."""
