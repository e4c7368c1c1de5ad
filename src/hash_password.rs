//! `hash-password`: a password from the terminal or a pipe becomes a line of an htpasswd file.

use std::io::{BufRead, IsTerminal, Write, stderr, stdin, stdout};
use std::process::ExitCode;

/// Work of one hash: about a quarter of a second.
const COST: u32 = 12;
/// bcrypt looks at no more octets; a longer password would be a shorter one.
const MAX: usize = 72;

/// Reads, hashes, prints.
pub fn run(user: Option<&str>) -> ExitCode {
    match read().and_then(|password| line(user, &password, COST)) {
        Ok(line) => match writeln!(stdout(), "{line}") {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Err(why) => {
            let _ = writeln!(stderr(), "tak-os-ingress: hash-password: {why}");
            ExitCode::FAILURE
        }
    }
}

/// `user:hash`, or the hash alone.
fn line(user: Option<&str>, password: &[u8], cost: u32) -> Result<String, String> {
    if password.is_empty() {
        return Err("the password is empty".into());
    }
    if password.len() > MAX {
        return Err(format!(
            "the password is longer than {MAX} bytes, of which bcrypt would ignore the rest"
        ));
    }
    if password.iter().any(u8::is_ascii_control) {
        return Err("the password has a control character, which cannot be sent (RFC 7617 section 2)".into());
    }
    let parts = bcrypt::hash_with_result(password, cost).map_err(|e| e.to_string())?;
    // The prefix that htpasswd writes, which every server reads.
    let hash = parts.format_for_version(bcrypt::Version::TwoY);
    Ok(match user {
        Some(user) => format!("{user}:{hash}"),
        None => hash,
    })
}

/// The first line of a pipe; from a terminal the same line twice.
fn read() -> Result<Vec<u8>, String> {
    if !stdin().is_terminal() {
        return one_line();
    }
    let _quiet = Quiet::new();
    let first = ask("Password: ")?;
    let second = ask("Again: ")?;
    if first == second { Ok(first) } else { Err("the two passwords differ".into()) }
}

fn ask(prompt: &str) -> Result<Vec<u8>, String> {
    let _ = write!(stderr(), "{prompt}");
    let _ = stderr().flush();
    let line = one_line();
    let _ = writeln!(stderr());
    line
}

fn one_line() -> Result<Vec<u8>, String> {
    let mut line = Vec::new();
    stdin().lock().read_until(b'\n', &mut line).map_err(|e| format!("cannot read the password: {e}"))?;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(line)
}

/// The terminal shows nothing of what is typed while this lives.
struct Quiet(libc::termios);

impl Quiet {
    fn new() -> Option<Self> {
        // SAFETY: an all-zero termios is a valid value of a plain C struct, which the first call fills.
        unsafe {
            let mut before: libc::termios = std::mem::zeroed();
            if libc::tcgetattr(libc::STDIN_FILENO, &mut before) != 0 {
                return None;
            }
            let mut silent = before;
            silent.c_lflag &= !libc::ECHO;
            (libc::tcsetattr(libc::STDIN_FILENO, libc::TCSAFLUSH, &silent) == 0).then_some(Self(before))
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // SAFETY: the struct is the one that the terminal gave.
        unsafe {
            libc::tcsetattr(libc::STDIN_FILENO, libc::TCSAFLUSH, &self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_holds_the_user_and_a_hash_of_the_password() {
        let made = line(Some("alice"), "p\u{e4}:ss".as_bytes(), 4).unwrap();
        let hash = made.strip_prefix("alice:").unwrap();
        assert!(hash.starts_with("$2y$04$"), "{hash}");
        assert!(bcrypt::verify("p\u{e4}:ss", hash).unwrap());
        assert!(line(None, b"x", 4).unwrap().starts_with("$2y$04$"));
    }

    #[test]
    fn passwords_that_would_not_work_are_refused() {
        for password in [&b""[..], &[b'a'; 73], b"a\0b", b"a\nb"] {
            assert!(line(None, password, 4).is_err(), "{password:?}");
        }
        assert!(line(None, &[b'a'; 72], 4).is_ok());
    }
}
