//! The binary from outside: what a person, a script or cron meets. All in one, so that it is linked once; what measures the
//! machine is apart, in `bars`.

mod a_busy_lease_is_left_alone;
mod a_full_disk_runs_nothing_by_halves;
mod a_moved_clock_decides_nothing;
mod a_run_is_like_its_command;
mod a_wrong_password_is_denied;
mod bad_input_changes_nothing;
mod by_hand_is_the_same_lease;
mod charges_are_made_once;
mod damaged_state_is_never_acted_on;
mod demo;
mod doctor;
mod every_store_is_the_same;
mod git_push;
mod guard;
mod newcomers_are_told_what_they_need;
mod one_winner_each_race;
mod packaging;
mod readme;
mod schedules;
mod serve;
mod signals_reach_the_job;
mod slots_are_accounted_for;
mod slots_with_keys;
mod stale_writes_are_refused;
mod steps;
mod targets_behind_a_network;
mod targets_say_what_is_wrong;
mod the_last_lines_are_kept;
mod the_last_runs_are_kept;
mod three_daemons;
mod tidy;
mod what_goes_wrong_is_told;
mod what_people_read;
mod work_is_done_once;
mod world;
