# needs: java javac
mkdir -p src/p
cat >src/p/Main.java <<'M'
package p;
import java.nio.channels.*;
import java.nio.file.*;
import java.nio.file.attribute.*;
import java.util.*;
import java.util.concurrent.*;
public class Main {
  public static void main(String[] args) throws Exception {
    ExecutorService pool = Executors.newFixedThreadPool(4);
    List<Future<Path>> made = new ArrayList<>();
    for (int i = 0; i < 40; i++) { int n = i; made.add(pool.submit(() -> Files.writeString(Path.of("f" + n), "file " + n))); }
    for (Future<Path> f : made) f.get();
    pool.shutdown();
    Files.createDirectories(Path.of("a/b/c"));
    Files.move(Path.of("f0"), Path.of("a/moved"), StandardCopyOption.ATOMIC_MOVE);
    Files.copy(Path.of("a/moved"), Path.of("a/copied"), StandardCopyOption.COPY_ATTRIBUTES);
    Files.createSymbolicLink(Path.of("a/link"), Path.of("moved"));
    Files.createLink(Path.of("a/hard"), Path.of("a/moved"));
    Files.setPosixFilePermissions(Path.of("a/copied"), PosixFilePermissions.fromString("rw----r--"));
    Files.setLastModifiedTime(Path.of("a/copied"), FileTime.fromMillis(1000000000000L));
    try (FileChannel c = FileChannel.open(Path.of("locked"), StandardOpenOption.CREATE, StandardOpenOption.WRITE); FileLock lock = c.lock()) { System.out.println("locked " + lock.isValid()); }
    Path temporary = Files.createTempFile(Path.of("."), "temporary", "");
    System.out.println(Files.getPosixFilePermissions(temporary).size());
    Files.delete(temporary);
    Process child = new ProcessBuilder("sh", "-c", "cat; exit 4").start();
    child.getOutputStream().write("piped\n".getBytes());
    child.getOutputStream().close();
    System.out.print(new String(child.getInputStream().readAllBytes()));
    System.out.println(child.waitFor());
    try { Files.createDirectory(Path.of("a")); } catch (FileAlreadyExistsException e) { System.out.println(e); }
    try { Files.delete(Path.of("a")); } catch (DirectoryNotEmptyException e) { System.out.println(e); }
    try { Files.readString(Path.of("none")); } catch (NoSuchFileException e) { System.out.println(e); }
    try (var walk = Files.walk(Path.of("a"))) { walk.sorted().forEach(System.out::println); }
  }
}
M
javac -d classes src/p/Main.java
java -XX:+UseSerialGC -cp classes p.Main
