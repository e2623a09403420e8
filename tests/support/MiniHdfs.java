import java.net.InetSocketAddress;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** HDFS of one name node and one data node, in the directory of the first argument, until standard input ends. */
public final class MiniHdfs {
    public static void main(String[] arguments) throws Exception {
        Configuration configuration = new Configuration();
        // Objects of a few megabytes have several blocks.
        configuration.setLong("dfs.blocksize", 1024 * 1024);
        configuration.setLong("dfs.namenode.fs-limits.min-block-size", 1024 * 1024);
        configuration.set("dfs.checksum.type", arguments[1]);
        // Pages of a listing: small, so that a test of many objects has several.
        configuration.setInt("dfs.ls.limit", 100);
        MiniDFSCluster.Builder builder = new MiniDFSCluster.Builder(configuration, new java.io.File(arguments[0]));
        try (MiniDFSCluster cluster = builder.numDataNodes(1).build()) {
            cluster.waitActive();
            InetSocketAddress address = cluster.getNameNode().getHttpAddress();
            System.out.println("http://127.0.0.1:" + address.getPort());
            while (System.in.read() >= 0) {
            }
        }
        System.exit(0);
    }
}
