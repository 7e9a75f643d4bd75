// Package sockfd keeps copies of the sockets that a supervisor has made for a
// command. A copy is a descriptor of the supervisor for the same open file
// description that the command has. With the copy the supervisor can connect, bind or
// send for the command, without the right to take a descriptor out of another process.
//
// A copy keeps the socket open after the command has closed it: a peer would not
// see the end of the connection, a port would stay taken, and an epoll(7) of the
// command would still report the socket. So a copy is dropped as early as
// possible:
//
//   - when the socket is connected or listens, because after that the command needs no help
//   - when no process of the command has the socket open. The descriptors in
//     procfs show this ([Copies.Sweep]). A timer looks every second while there are
//     copies, and a caller that is short of ports or descriptors sweeps at once
//
// A [Message] is a message that the supervisor sends for the command.
//
// The package does not know the permitted uses of a socket, and decides nothing. All methods
// may be called concurrently. Linux only.
package sockfd
