//! The promises, by what they need.

mod disk;
mod image;
mod life;
mod limits;
mod place;

/// What needs nothing but the trait.
pub mod any {
    pub use super::image::{a_foreign_image_is_unfit, damage_is_refused};
    pub use super::life::{
        a_boot_has_fresh_memory, a_first_start_answers, a_kill_is_noticed, a_pause_stops_it,
        a_running_engine_is_not_saved, a_save_can_be_called_off, loading_spends_nothing, memory_comes_back_three_times,
        nothing_runs_before_its_time, switched_off_from_inside_it_ends,
    };
    pub use super::place::{engines_are_adopted, reaping_is_fine_at_any_time};
}

/// What needs a guest with a shell, and processes.
pub mod real {
    pub use super::disk::{a_disk_grows_asleep_and_awake, a_fork_is_whole_and_its_own, synced_files_outlive_a_kill};
    pub use super::image::{
        a_full_disk_leaves_it_alive, an_inspector_sees_engines_and_damage, another_machines_image_is_unfit,
        what_is_in_the_way_leaves_no_half_image,
    };
    pub use super::life::{a_command_runs, a_golden_snapshot_is_cloned_with_what_runs_in_it, what_can_be_done_is_said};
    pub use super::limits::{a_hog_is_ended, processor_time_is_limited};
    pub use super::place::{
        a_cut_off_launch_is_not_adopted, a_dropped_launch_leaves_nothing, a_place_is_reaped_with_anything_missing,
        a_taken_place_is_refused, another_runtimes_broom_clears_everything,
    };
}
