import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.StatusRuntimeException;
import io.grpc.health.v1.HealthCheckRequest;
import io.grpc.health.v1.HealthGrpc;

/** A client of gRPC's health service. */
public class Check {
  public static void main(String[] args) {
    ManagedChannel channel = ManagedChannelBuilder.forTarget(args[0]).usePlaintext().build();
    try {
      System.out.println(HealthGrpc.newBlockingStub(channel).check(HealthCheckRequest.getDefaultInstance()).getStatus());
    } catch (StatusRuntimeException e) {
      System.err.println(e.getMessage() + ": " + e.getCause());
      System.exit(1);
    } finally {
      channel.shutdownNow();
    }
  }
}
