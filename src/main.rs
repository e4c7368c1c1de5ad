//! `tak-os-ingress`: a Kubernetes ingress controller and proxy in one process.
//!
//! This crate is the composition root: the only code that knows the controller and the proxy.

mod admin;
mod allocator;
mod app;
mod args;
mod demo;
mod hash_password;
mod readiness;
mod telemetry;

use std::io::Write;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

fn main() -> ExitCode {
    let settings = match args::parse(std::env::args_os()) {
        Ok(settings) => settings,
        Err(args::Stop::Help(text)) => {
            let _ = std::io::stdout().write_all(text.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(args::Stop::Usage(line)) => return usage(&line),
        Err(args::Stop::HashPassword(user)) => return hash_password::run(user.as_deref()),
    };
    match app::run(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(app::Failure::Usage(line)) => usage(&line),
        Err(app::Failure::Run(error)) => {
            let _ = writeln!(std::io::stderr(), "tak-os-ingress: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// One line on stderr and status 2: the configuration is at fault and nothing was started.
fn usage(line: &str) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "tak-os-ingress: {line}");
    ExitCode::from(2)
}
