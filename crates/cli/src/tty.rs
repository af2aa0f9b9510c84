//! Our own terminal: raw while a remote one is shown, and as it was whatever happens.

use std::io::{self, IsTerminal};
use std::sync::{Mutex, Once, PoisonError};

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use wakeful_client::types::PtySize;

/// How it was, while it is raw.
static SAVED: Mutex<Option<Termios>> = Mutex::new(None);
static HOOK: Once = Once::new();

/// What a remote program may have switched on and can no longer switch off: colours, hidden cursor, mouse, pastes.
const SETTLED: &[u8] = b"\x1b[0m\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l";

/// While this lives, keys come one by one and unchanged. Dropped, also by a panic: all is as before.
pub(crate) struct Raw(());

impl Raw {
    pub(crate) fn enter() -> io::Result<Self> {
        HOOK.call_once(|| {
            // the panic's text is for a terminal that works
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                restore();
                before(info);
            }));
        });
        let raw = Self(());
        raw.again()?;
        Ok(raw)
    }

    /// Once more: who stopped us meanwhile may have left it otherwise.
    pub(crate) fn again(&self) -> io::Result<()> {
        let now = tcgetattr(io::stdin())?;
        let mut wanted = now.clone();
        wanted.make_raw();
        SAVED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(now);
        tcsetattr(io::stdin(), OptionalActions::Now, &wanted)?;
        Ok(())
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    if let Some(saved) = SAVED.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // if the terminal is gone there is nothing to restore
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &saved);
    }
}

/// The bytes that leave nothing of a remote program's behind.
pub(crate) fn settled() -> &'static [u8] {
    SETTLED
}

/// Whether a person sits at both ends.
pub(crate) fn attended() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Its size now; 80 by 24 if it does not say.
pub(crate) fn size() -> PtySize {
    let found = tcgetwinsize(io::stdout()).or_else(|_| tcgetwinsize(io::stdin())).ok();
    match found {
        Some(found) if found.ws_col > 0 && found.ws_row > 0 => PtySize { cols: found.ws_col, rows: found.ws_row },
        _ => PtySize { cols: 80, rows: 24 },
    }
}
