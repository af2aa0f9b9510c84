//! What every driver promises. `driver_contract!(name, open)` makes one test of each promise; for tests only.
//!
//! ```text
//!   Lab (one per driver)     a driver with its directories, a base, cards       opened by each test, gone with it
//!    └ Sandbox               one place and what lives in it                     reaped with it
//!   promises/                what holds whichever engine it is
//! ```
//!
//! A promise is kept or it panics. Those of [`any`] need nothing but the trait; those of [`real`] need a guest with a shell and
//! processes on the host, which simulated engines do not have. What belongs to one engine alone (its walls, its files) is
//! tested beside it.

mod lab;
mod promises;
mod sandbox;
mod small;

pub use lab::{Count, Lab, RealLab, cache, run_dir};
pub use promises::{any, real};
pub use sandbox::{Sandbox, flip, shell, suspended};
pub use small::SmallDisk;

use std::time::Duration;

/// Far more than any promise takes, also where guests are emulated on busy processors.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// One test of each promise over the driver that this function opens a lab for: `real` for one with real guests.
#[macro_export]
macro_rules! driver_contract {
    ($name:ident, $open:path) => {
        mod $name {
            $crate::driver_contract!(@any $open);
        }
    };
    ($name:ident, $open:path, real) => {
        mod $name {
            $crate::driver_contract!(@any $open);
            $crate::driver_contract!(@each real $open:
                a_command_runs, what_can_be_done_is_said, a_golden_snapshot_is_cloned_with_what_runs_in_it, another_machines_image_is_unfit, an_inspector_sees_engines_and_damage,
                a_full_disk_leaves_it_alive, what_is_in_the_way_leaves_no_half_image, a_cut_off_launch_is_not_adopted,
                a_place_is_reaped_with_anything_missing, another_runtimes_broom_clears_everything,
                a_dropped_launch_leaves_nothing, a_taken_place_is_refused, a_disk_grows_asleep_and_awake,
                synced_files_outlive_a_kill, a_fork_is_whole_and_its_own, a_hog_is_ended, processor_time_is_limited);
        }
    };
    (@any $open:path) => {
        $crate::driver_contract!(@each any $open:
            a_first_start_answers, a_pause_stops_it, a_running_engine_is_not_saved, a_save_can_be_called_off,
            memory_comes_back_three_times, nothing_runs_before_its_time, loading_spends_nothing, a_kill_is_noticed,
            switched_off_from_inside_it_ends, a_boot_has_fresh_memory, damage_is_refused, a_foreign_image_is_unfit,
            engines_are_adopted, reaping_is_fine_at_any_time);
    };
    (@each $kind:ident $open:path: $($promise:ident),+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                let kept = async { $crate::$kind::$promise($open().await).await };
                tokio::time::timeout($crate::PATIENCE, kept).await.expect("done in time");
            }
        )+
    };
}
