// A server and its clients in one command. What it prints is the same wherever it runs.
const http = require('http'), net = require('net'), dgram = require('dgram'), children = require('child_process')

async function main() {
  const server = http.createServer((_, answer) => answer.end('hello'))
  await new Promise(done => server.listen(0, '127.0.0.1', done))
  const at = server.address().port
  const got = await new Promise(done => http.get({ port: at, host: '127.0.0.1' }, answer => answer.on('data', d => done(d.toString()))))
  console.log('http', got)
  server.close()
  server.closeAllConnections?.()

  const local = net.createServer(c => c.end('hello'))
  await new Promise(done => local.listen('node.socket', done))
  await new Promise(done => net.connect('node.socket').on('data', d => console.log('unix', d.toString())).on('close', done))
  local.close()

  const a = dgram.createSocket('udp4'), b = dgram.createSocket('udp4')
  await new Promise(done => a.bind(0, '127.0.0.1', done))
  const received = new Promise(done => a.on('message', m => done(m.toString())))
  b.send('datagram', a.address().port, '127.0.0.1')
  console.log('udp', await received)
  a.close()
  b.close()

  const child = children.fork('child.js')
  console.log('fork', await new Promise(done => child.on('message', done)))
  console.log('spawnSync', children.spawnSync('echo', ['hello']).stdout.toString().trim())
  await new Promise(done => net.connect(1, '127.0.0.1').on('error', e => { console.log('refused', e.code); done() }))
}

main()
