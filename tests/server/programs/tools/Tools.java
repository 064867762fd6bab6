import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs Kafka's tools one after the other in one JVM. Each line of standard input is a call, {"tool", "arguments", "input",
 * "seconds"}; each line of standard output says how the call ended, {"code", "out", "err"}. The code is null if the call did
 * not end in time; "err" is then where it stood.
 *
 * <p>Each call loads the jar of the tools anew, since some keep counts in static fields; Kafka's clients stay loaded.
 */
public final class Tools {
    private static final class Ended extends Error {
        private Ended(int code) {
            super("the tool ended with " + code);
        }
    }

    private final URL jar;
    private final List<Runnable> hooks = new ArrayList<>();
    private Integer code;

    private Tools(URL jar) {
        this.jar = jar;
    }

    public static void main(String[] arguments) throws Exception {
        URL jar = Path.of(arguments[0]).toUri().toURL();
        PrintStream answers = System.out;
        ObjectMapper json = new ObjectMapper();
        BufferedReader calls = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = calls.readLine(); line != null; line = calls.readLine()) {
            answers.println(json.writeValueAsString(new Tools(jar).run(json.readTree(line))));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private Map<String, Object> run(JsonNode call) throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        show(out, err);
        System.setIn(new ByteArrayInputStream(call.get("input").asText().getBytes(StandardCharsets.UTF_8)));
        Exit.setExitProcedure(this::end);
        Exit.setHaltProcedure(this::end);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        Thread thread = new Thread(() -> called(call));
        thread.setDaemon(true);
        thread.start();
        thread.join(call.get("seconds").asLong() * 1000);
        if (thread.isAlive()) {
            for (StackTraceElement each : thread.getStackTrace()) {
                System.err.println(each);
            }
            thread.interrupt();
        }
        Integer ended = thread.isAlive() ? null : code;
        show(out, err);
        for (Runnable hook : hooks) {
            Thread last = new Thread(hook);
            last.setDaemon(true);
            last.start();
            last.join(10_000);
        }
        Map<String, Object> told = new HashMap<>();
        told.put("code", ended);
        told.put("out", out.toString(StandardCharsets.UTF_8));
        told.put("err", err.toString(StandardCharsets.UTF_8));
        return told;
    }

    private static void show(OutputStream out, OutputStream err) {
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
    }

    /** Ends the tool. The first code counts, and nothing is shown after it: a tool may catch the error, and tell of it. */
    private void end(int ended, String message) {
        if (code == null) {
            code = ended;
        }
        show(OutputStream.nullOutputStream(), OutputStream.nullOutputStream());
        throw new Ended(ended);
    }

    private void called(JsonNode call) {
        List<String> arguments = new ArrayList<>();
        call.get("arguments").forEach(each -> arguments.add(each.asText()));
        try (URLClassLoader loader = new URLClassLoader(new URL[] {jar}, Tools.class.getClassLoader())) {
            Thread.currentThread().setContextClassLoader(loader);
            Class<?> tool = Class.forName(call.get("tool").asText(), true, loader);
            tool.getMethod("main", String[].class).invoke(null, (Object) arguments.toArray(new String[0]));
            code = code == null ? Integer.valueOf(0) : code;
        } catch (InvocationTargetException e) {
            if (!(e.getCause() instanceof Ended)) {
                e.getCause().printStackTrace();
                code = code == null ? Integer.valueOf(1) : code;
            }
        } catch (Exception e) {
            e.printStackTrace();
            code = -1;
        }
    }
}
