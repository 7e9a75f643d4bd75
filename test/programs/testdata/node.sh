# needs: node
cat >work.js <<'M'
const fs = require('fs'), path = require('path'), os = require('os'), child = require('child_process')
const { Worker, isMainThread } = require('worker_threads')
if (process.argv[2] === 'child') {
  process.on('message', m => { process.send(m + 1); process.disconnect() })
} else if (!isMainThread) {
  fs.writeFileSync('by-worker', 'thread\n')
} else main()
async function main() {
  const echo = child.spawnSync('cat', { input: 'through a pipe' })
  console.log('spawnSync', echo.status, String(echo.stdout), echo.error && echo.error.code)
  const failed = child.spawnSync('sh', ['-c', 'echo no >&2; exit 3'])
  console.log('spawnSync', failed.status, String(failed.stderr).trim())
  console.log('execSync', String(child.execSync('ls | wc -l && echo done')).trim().split('\n').length)
  console.log('missing', child.spawnSync('no-such-program').error.code)
  await new Promise(done => child.spawn('sh', ['-c', 'cat >by-child'], { stdio: ['pipe', 'inherit', 'inherit'] }).on('close', done).stdin.end('written\n'))
  await new Promise(done => { const c = child.fork(__filename, ['child']); c.on('message', m => console.log('message', m)); c.on('close', done); c.send(41) })
  await new Promise(done => new Worker(__filename).on('exit', done))
  fs.mkdirSync('a/b/c', { recursive: true })
  fs.mkdirSync('a/b/c', { recursive: true })
  fs.writeFileSync('a/b/file', 'text', { mode: 0o640 })
  fs.appendFileSync('a/b/file', ' and more')
  fs.symlinkSync('file', 'a/b/link')
  fs.copyFileSync('a/b/file', 'a/copy')
  fs.renameSync('a/copy', 'a/renamed')
  fs.linkSync('a/renamed', 'a/linked')
  fs.truncateSync('a/linked', 2)
  fs.utimesSync('a/b/file', 1000000000, 1000000001)
  fs.chmodSync('a/b/file', 0o604)
  fs.cpSync ? fs.cpSync('a', 'z', { recursive: true }) : 0
  console.log(fs.readdirSync('a').sort(), fs.realpathSync('a/b/link').endsWith('/a/b/file'), fs.readFileSync('a/b/link', 'utf8'))
  fs.accessSync('a', fs.constants.W_OK)
  const made = fs.mkdtempSync(path.join(os.tmpdir(), 'made-'))
  fs.rmSync(made, { recursive: true })
  await Promise.all(Array.from({ length: 50 }, (_, i) => fs.promises.writeFile(`many-${i}`, String(i))))
  await Promise.all(Array.from({ length: 50 }, (_, i) => fs.promises.unlink(`many-${i}`)))
  fs.rmSync('a/b/c', { recursive: true })
  fs.createReadStream('work.js').pipe(fs.createWriteStream('streamed')).on('close', () => console.log('streamed'))
  for (const attempt of [() => fs.readFileSync('none'), () => fs.mkdirSync('a'), () => fs.rmdirSync('a'), () => fs.writeFileSync('a', '')])
    try { attempt() } catch (e) { console.log(e.code, e.syscall) }
}
M
node work.js
