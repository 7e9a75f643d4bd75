// grpc is a server of gRPC's health service, or a client of it. Without cgo it is a static program that has Go's own
// resolver. It knows of no proxy.
package main

import (
	"context"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

func main() {
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(role, address string) error {
	if role == "serve" {
		l, err := net.Listen("tcp4", address)
		if err != nil {
			return err
		}
		s := grpc.NewServer()
		healthpb.RegisterHealthServer(s, health.NewServer())
		return s.Serve(l)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy())
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := healthpb.NewHealthClient(conn).Check(context.Background(), &healthpb.HealthCheckRequest{})
	fmt.Println(answer.GetStatus())
	return err
}
