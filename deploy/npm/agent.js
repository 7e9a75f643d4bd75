#!/usr/bin/env node
"use strict";

// The program agent is in a package of its own for each platform, of which npm installs the one for this machine.
// This script becomes that program where Node can do so: then nothing stands between the program and whoever has
// started it. Elsewhere it starts the program, passes signals on, and ends as the program has ended.

const { spawn } = require("child_process");
const fs = require("fs");
const os = require("os");
const path = require("path");
const { name, optionalDependencies } = require("./package.json");

const platform = `${process.platform}-${process.arch}`;

function fail(text) {
  fs.writeSync(2, `agent: ${text}\n`);
  process.exit(1);
}

/** The path of the program for this machine. */
function find() {
  const wanted = `${name}-${platform}`;
  if (!(wanted in optionalDependencies)) {
    const others = Object.keys(optionalDependencies).map((other) => other.slice(name.length + 1));
    fail(`${name} has no program for ${platform}; it has programs for ${others.join(", ")}`);
  }
  try {
    const manifest = require.resolve(`${wanted}/package.json`);
    return path.join(path.dirname(manifest), "bin", process.platform === "win32" ? "agent.exe" : "agent");
  } catch {
    return fail(
      `the package ${wanted}, which has the program for this machine, is not installed. npm leaves it out after ` +
        "--omit=optional or --no-optional, or if node_modules comes from another platform. Install without these, " +
        `on this machine: npm install ${name}`,
    );
  }
}

/** Reports whether a terminal, or a console of Windows, sends its signals to the program as well as to this process. */
function terminal() {
  if (process.platform === "win32") return true;
  try {
    fs.closeSync(fs.openSync("/dev/tty", "r"));
    return true;
  } catch {
    return false;
  }
}

function start(file, args) {
  const child = spawn(file, args, { stdio: "inherit" });
  const both = terminal() ? ["SIGINT", "SIGQUIT", "SIGBREAK"] : [];
  for (const signal of ["SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGBREAK"]) {
    if (signal in os.constants.signals) process.on(signal, () => both.includes(signal) || child.kill(signal));
  }
  child.on("error", (error) => fail(`cannot run ${file}: ${error.message}`));
  child.on("exit", (code, signal) => {
    if (signal === null) process.exit(code);
    // The same end as the program's. A signal that does not end this process, as that of PID 1, becomes a code.
    process.removeAllListeners(signal);
    process.kill(process.pid, signal);
    process.exit(128 + os.constants.signals[signal]);
  });
}

const file = find();
const args = process.argv.slice(2);
if (process.execve) {
  // Some versions of Node end without a word if this fails, so ask first. Its warning that it is new is not printed,
  // because warnings wait for the next turn.
  try {
    fs.accessSync(file, fs.constants.X_OK);
    process.execve(file, [file, ...args], process.env);
  } catch (error) {
    fail(`cannot run ${file}: ${error.message}`);
  }
} else {
  start(file, args);
}
