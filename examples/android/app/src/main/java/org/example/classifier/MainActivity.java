package org.example.classifier;

import android.app.Activity;
import android.graphics.Bitmap;
import android.graphics.Color;
import android.os.Bundle;
import android.widget.TextView;

/** Classifies a grey image in a thread of its own, and shows the class. */
public final class MainActivity extends Activity {
    @Override
    protected void onCreate(Bundle state) {
        super.onCreate(state);
        TextView text = new TextView(this);
        setContentView(text);
        new Thread(() -> {
            int size = Network.size();
            Bitmap bitmap = Bitmap.createBitmap(size, size, Bitmap.Config.ARGB_8888); // yours, scaled to this size
            bitmap.eraseColor(Color.GRAY);
            int[] pixels = new int[size * size];
            bitmap.getPixels(pixels, 0, size, 0, 0, size, size);
            try (Network network = new Network()) {
                String name = network.classify(pixels);
                runOnUiThread(() -> text.setText(name));
            }
        }).start();
    }
}
