# A server and its clients in one command, over all that a command with the network may use.
# What it prints is the same wherever it runs.
import asyncio, http.server, os, select, socket, threading, time, urllib.request


class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello)
port = server.server_address[1]
threading.Thread(target=server.serve_forever, daemon=True).start()
print("http", urllib.request.urlopen(f"http://127.0.0.1:{port}/").read())
server.shutdown()
server.server_close()
again = socket.create_server(("127.0.0.1", port))  # the port is free again
again.close()


# A name server that knows one name, and its client.
def resolve(names):
    query, client = names.recvfrom(512)
    names.sendto(query[:2] + b"\x81\x80" + query[4:6] + b"\x00\x01" + query[8:] + b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\xc0\x00\x02\x07", client)


names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
names.bind(("127.0.0.1", 0))
threading.Thread(target=resolve, args=(names,)).start()
client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
client.sendto(b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04name\x04test\x00\x00\x01\x00\x01", names.getsockname())
print("dns", socket.inet_ntoa(client.recv(512)[-4:]))
client.connect(names.getsockname())
client.sendmsg([b"two", b" parts"])
print("datagram", names.recv(100))

# UNIX sockets in the workspace, and descriptors that go over them.
unix = socket.socket(socket.AF_UNIX)
unix.bind("socket")
unix.listen()
one = socket.socket(socket.AF_UNIX)
one.connect("socket")
two, _ = unix.accept()
socket.send_fds(two, [b"fd"], [names.fileno()])
message, fds, _, _ = socket.recv_fds(one, 10, 1)
print("unix", unix.getsockname(), message, len(fds))
os.unlink("socket")

# IPv6, if the machine has it.
try:
    six = socket.create_server(("::1", 0), family=socket.AF_INET6)
    print("ipv6", socket.create_connection(six.getsockname()[:2]).getpeername()[0])
except OSError as e:
    print("ipv6", e.errno)


async def lines():
    async def answer(reader, writer):
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(answer, "127.0.0.1", 0)
    at = listener.sockets[0].getsockname()
    for got in await asyncio.gather(*(ask(at, b"line %d\n" % i) for i in range(50))):
        assert got.startswith(b"line")
    listener.close()


async def ask(at, line):
    reader, writer = await asyncio.open_connection(*at)
    writer.write(line)
    got = await reader.read()
    writer.close()
    return got


asyncio.run(lines())
print("asyncio")

# The end of a connection is seen at once, and a refused connection can be tried again.
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
patient = socket.socket()
patient.settimeout(20)
refused = patient.connect_ex(listener.getsockname())
listener.listen()
while patient.connect_ex(listener.getsockname()) not in (0, 106):
    time.sleep(0.01)
conn, _ = listener.accept()
patient.close()
begun = time.monotonic()
select.select([conn], [], [], 20)
print("end", conn.recv(1), refused, time.monotonic() - begun < 10)

for i in range(3000):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("127.0.0.1", 0))
    s.close()
print("many")
