// Package socket is one WebSocket of the relay (remote.md 4), at either end:
// whole binary messages in pooled buffers, and many lanes that share the way
// out.
//
// Each stream writes to a [Lane] of its own. The frames of a lane keep their order.
// Between lanes the [Socket] decides: the lanes take turns, one frame each, and
// small frames go before bulk, but never so many of them that bulk stops. A sender
// that finds the socket idle writes its frame itself, without a change of goroutine.
// Under load a goroutine writes, which lives only as long as the load, and puts
// small frames together into one system call.
//
//	s, err := socket.Dial(ctx, url, header, socket.Config{})
//	...
//	lane := s.NewLane(0)
//	m := socket.NewMessage(len(text))
//	m.Bytes = append(m.Bytes, text...)
//	err = lane.Send(m) // which releases m
//
// A close frame is never sent. A text message fails the one Read that finds it, and
// the socket lives on.
package socket
