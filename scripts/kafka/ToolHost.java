import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;

import org.apache.kafka.common.utils.Exit;
import org.slf4j.LoggerFactory;

/**
 * Kafka's command line tools, one after another in one JVM: starting one takes seconds, running one a fraction of that.
 *
 * A line in is a main class and its arguments, each in Base64; a line out is the exit code, and what was printed to the
 * standard output and the standard error, in Base64. Started by tests/support/kafka_tools.py as a single source file.
 */
public final class ToolHost {
    private static final class Ended extends RuntimeException {
        Ended() {
            super("the tool has ended", null, false, false);
        }
    }

    /** What the tool in hand wanted to exit with first; some catch what exiting throws, and exit again. */
    private static Integer code;

    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        // Logs go to the standard error that is there when the first logger is made: ours, not that of a tool.
        LoggerFactory.getLogger(ToolHost.class);
        Exit.setExitProcedure((wanted, message) -> {
            code = code == null ? wanted : code;
            throw new Ended();
        });
        // Hooks of tools that have ended long ago would run when this process does.
        Exit.setShutdownHookAdder((name, hook) -> { });
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line; (line = requests.readLine()) != null; ) {
            String[] words = Arrays.stream(line.split(" ")).map(ToolHost::decoded).toArray(String[]::new);
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
            int ended = run(words[0], Arrays.copyOfRange(words, 1, words.length));
            System.out.flush();
            System.err.flush();
            answers.println(ended + " " + encoded(out) + " " + encoded(err));
            answers.flush();
        }
    }

    private static int run(String mainClass, String[] arguments) throws ReflectiveOperationException {
        code = null;
        try {
            Class.forName(mainClass).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Ended)) {
                thrown.getCause().printStackTrace();
                return 1;
            }
        }
        return code == null ? 0 : code;
    }

    private static String decoded(String word) {
        return new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8);
    }

    /** Never empty, so that a line has three words. */
    private static String encoded(ByteArrayOutputStream printed) {
        return "=" + Base64.getEncoder().encodeToString(printed.toByteArray());
    }
}
